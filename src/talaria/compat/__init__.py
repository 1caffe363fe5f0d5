"""What was made for other programs, and can be used with Talaria."""
