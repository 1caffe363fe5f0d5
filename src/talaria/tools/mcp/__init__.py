"""Tools of other programs, over the Model Context Protocol.

Only `wire` and `transports` use the `mcp` package. Only `server_connection` loads them, in a thread, when there is a
server to reach.
"""
