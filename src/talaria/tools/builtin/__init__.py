"""The tools that come with Talaria."""
