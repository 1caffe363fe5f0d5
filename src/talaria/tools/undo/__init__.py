"""Undo for everything in a project: its state is recorded before a turn changes it, and can be restored."""
