"""discord.py, as far as it is used here: its gateway socket and what it knows of servers and channels."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it loads `audioop` for voices that nobody hears
    import discord
    from discord.gateway import DiscordClientWebSocketResponse, DiscordWebSocket, ReconnectWebSocket
    from discord.http import HTTPClient

discord.VoiceClient.warn_nacl = False
discord.VoiceClient.warn_dave = False

__all__ = ["DiscordClientWebSocketResponse", "DiscordWebSocket", "HTTPClient", "ReconnectWebSocket", "discord"]
