"""Completion of the command line by the shell."""
