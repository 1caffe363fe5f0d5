"""From nothing to a model that answers."""
