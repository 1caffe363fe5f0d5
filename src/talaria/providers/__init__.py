"""Models behind wires: `base.py` is the port, the wires and the demo stand beside it."""
