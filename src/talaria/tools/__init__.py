"""What the model can do: `base.py` is the port, the builtin tools stand beside it."""
