"""How tokens of the HTTP API look, and what they allow. A token itself is kept nowhere: the store has its digest."""

import re
import secrets
from collections.abc import Mapping
from hashlib import sha256

from talaria.core.errors import BadInput
from talaria.store.api_ports import Scope

SCOPES: Mapping[Scope, str] = {
    "chat": "ask, and read the answers",
    "runs": "watch, stop and steer its own runs",
    "sessions": "list, search, read, rename, fork and delete its own conversations",
    "approve": "answer the questions of its runs, which may allow things outside the sandbox",
    "metrics": "read /metrics, /health and /ready",
    "admin": "the above for everybody's conversations",
}
DEFAULT_SCOPES: tuple[Scope, ...] = ("chat", "runs", "sessions")

SERVER_KEY_NAME = "server-key"
"""The token of `API_SERVER_KEY`, which is there as long as that is set."""
PREFIX = "tal_"
RANDOM_BYTES = 32

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def make_token() -> str:
    """`tal_` and 43 characters that need no quoting anywhere."""
    return f"{PREFIX}{secrets.token_urlsafe(RANDOM_BYTES)}"


def digest_of(token: str) -> str:
    """A plain hash is enough: nobody can try all tokens."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str) -> None:
    """Raises `BadInput`."""
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a name for a token: use up to 64 of a-z, 0-9, '.', '_' and '-', with a letter or digit "
            "first."
        )
    if name == SERVER_KEY_NAME:
        raise BadInput(f"{name!r} stands for the key in API_SERVER_KEY; choose another name.")
