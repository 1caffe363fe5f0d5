"""Real attempts to break out of a sandbox, for `talaria doctor --security` and the tests."""
