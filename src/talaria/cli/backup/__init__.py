"""Backing up, restoring and forgetting."""
