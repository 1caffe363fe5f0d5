"""A live session: its turns, what survives of them, and how they continue after a crash."""
