"""Slack, in Socket Mode: no address of ours needs to be reachable."""
