"""Attempts to get out of a sandbox, made for real by `talaria doctor --security` and the tests."""
