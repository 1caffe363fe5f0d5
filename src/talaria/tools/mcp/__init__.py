"""Tools of others over the Model Context Protocol. Only `wire`, `stdio`, `http`, `sifting` and `results` know the
`mcp` package, and only `connection` loads them, in a thread, when there is a server to reach."""
