"""Models behind wires: `base.py` is the port; the wires and the demo model are beside it."""
