"""A live session: its turns, what survives of them, and how they go on after a crash."""
