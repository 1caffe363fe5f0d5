"""Adapters that others have written for Hermes' gateway, run as platforms of ours."""
