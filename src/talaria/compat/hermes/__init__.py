"""The names that plugins for Hermes import, present while such a plugin is loaded."""
