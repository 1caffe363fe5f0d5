"""Commands that run and inspect the gateway, approve people and send messages."""
