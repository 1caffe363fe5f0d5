"""What plugins import; `finder.py` says which module serves which name."""
