"""Hosts by pattern, as people write them in settings."""


def is_covered(host: str, pattern: str) -> bool:
    """`*.name` stands for all below a name and the name itself, `*` for any host."""
    host, pattern = host.lower().rstrip("."), pattern.lower()
    if pattern.startswith("*."):
        return host == pattern[2:] or host.endswith(pattern[1:])
    return pattern in ("*", host)
