"""A Hermes home: what is in it, and what of it Talaria can take over."""
