"""A real browser for the model: pages as a tree of what can be read and used, with references to act on."""
