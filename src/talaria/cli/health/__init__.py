"""`talaria doctor`."""
