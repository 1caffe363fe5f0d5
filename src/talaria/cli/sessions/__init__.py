"""The conversations on the disk."""
