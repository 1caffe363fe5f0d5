"""The store on SQLite: `state.db` holds the facts, `search.db` a derived index, `run/` the owners'
locks."""
