"""Discord: the gateway socket of discord.py, and a small REST client of our own."""
