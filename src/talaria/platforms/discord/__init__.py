"""Discord: its gateway socket and its REST API."""
