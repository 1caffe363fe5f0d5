"""Call ids and tool names as strict endpoints take them.

After a fallback a history holds ids that another vendor made up; and models call tools by names that nobody has.
"""

import hashlib
import re

_STRICT = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_KIMI = re.compile(r"functions\.[a-zA-Z0-9_-]{1,64}:\d{1,6}")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


def fitting(identifier: str) -> str:
    """The identifier itself if every endpoint takes it; otherwise one that does, the same each time."""
    if _STRICT.fullmatch(identifier):
        return identifier
    digest = hashlib.sha256(identifier.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{_FOREIGN.sub('_', identifier)[:40]}_{digest}"


def returning(call_id: str) -> str:
    """`fitting`, on a wire behind which any vendor may stand.

    Kimi reads the name of its earlier calls from their ids, and falls silent when they come back in another form.
    """
    return call_id if _KIMI.fullmatch(call_id) else fitting(call_id)
