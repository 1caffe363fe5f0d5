"""A Hermes home: what is in it, and what Talaria can import from it."""
