"""Chat services. `base.py` is the port; each service is a folder of its own."""
