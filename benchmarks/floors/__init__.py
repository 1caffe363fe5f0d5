"""Programs that do the same work with nothing around it."""
