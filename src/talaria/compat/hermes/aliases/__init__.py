"""One module per name that plugins import; `finder.py` has the list."""
