"""Searching the web: `base.py` is the port, one file per service beside it, `choice.py` picks one."""
