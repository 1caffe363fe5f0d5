"""Commands for the conversations on the disk."""
