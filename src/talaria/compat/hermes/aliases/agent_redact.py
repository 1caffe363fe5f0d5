"""`agent.redact`: secrets taken out of text, the known ones by value and others by their shape. It rather hides too
much than too little."""

import re

from talaria.compat.hermes.bound import last_bound
from talaria.providers.provider_failures import HIDDEN, redact_secrets

_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_WHOLE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:"
    r"[srp]k[-_][A-Za-z0-9_-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{30,}"
    r"|hf_[A-Za-z0-9]{20,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r")",
    re.DOTALL,
)
_BEHIND = re.compile(
    r"(\bBearer\s+"
    r"|\b[\w.-]*(?:api[_-]?key|token|secret|passw(?:or)?d)[\"']?\s*[=:]\s*[\"']?"
    r"|\b[\w.-]*key[\"']?=[\"']?(?=[^\s&]*\d))"
    r"[^\s\"'&,;(){}<>$•]{6,}",
    re.IGNORECASE,
)


def redact_sensitive_text(text: object, **_: object) -> str:
    """Of anything that is not text, its `str()`; of None, nothing."""
    shown = redact_secrets("" if text is None else str(text), _list_known_secrets())
    return _BEHIND.sub(rf"\1{HIDDEN}", _WHOLE.sub(HIDDEN, shown))


def _list_known_secrets() -> list[str]:
    """The longest first: one may be the beginning of another."""
    here = last_bound()
    known = (*here.environment.items(), *here.plugin_home.secrets().items()) if here else ()
    return sorted((value for name, value in known if name.endswith(_SECRET_NAMES)), key=len, reverse=True)
