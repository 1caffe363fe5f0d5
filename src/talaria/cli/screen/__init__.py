"""The chat screen: a line to type on below the terminal's own scrollback."""
