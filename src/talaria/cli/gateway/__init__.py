"""The gateway, started, stopped and looked at; who may write to it, and what is sent by it."""
