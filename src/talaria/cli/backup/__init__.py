"""What a person keeps, brings back and forgets."""
