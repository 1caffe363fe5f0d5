"""Whether all is in order, and what to do if not."""
