"""Long conversations in finite windows."""
