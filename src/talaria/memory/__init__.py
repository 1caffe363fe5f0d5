"""What is remembered across conversations: the interface of providers, and their host."""
