"""Puts the application together: the only code that knows every adapter."""
