"""`gateway.whatsapp_identity`: one name for a person who has several on WhatsApp."""

import json
import re

from talaria.compat.hermes.aliases.hermes_constants import get_hermes_dir
from talaria.core.fs import read_text

_SAFE = re.compile(r"[A-Za-z0-9@.+-]+")
_PHONE = re.compile(r"\+?[\d\s().-]+")
_MAX_BYTES = 4_096
_MAX_PHONE_DIGITS = 15


def normalize_whatsapp_identifier(value: object) -> str:
    """`+60123:47@s.whatsapp.net` → `60123`."""
    return str(value or "").strip().replace("+", "", 1).partition(":")[0].partition("@")[0]


def to_whatsapp_jid(value: object) -> str:
    """`+60 123` → `60123@s.whatsapp.net`; a longer number is a group's."""
    text = str(value or "").strip()
    if "@" in text:
        person, _, domain = text.partition("@")
        return f"{person.partition(':')[0]}@{domain}"
    digits = re.sub(r"\D", "", text) if _PHONE.fullmatch(text) else ""
    if not digits:
        return text
    return f"{digits}@{'g.us' if len(digits) > _MAX_PHONE_DIGITS else 's.whatsapp.net'}"


def expand_whatsapp_aliases(identifier: object) -> set[str]:
    """All names that the bridge's files say are the same person; the normalised one is among them."""
    folder = get_hermes_dir("platforms/whatsapp/session", "whatsapp/session")
    known: set[str] = set()
    found = [normalize_whatsapp_identifier(identifier)]
    while found:
        name = found.pop()
        if name in known or not _SAFE.fullmatch(name):
            continue
        known.add(name)
        files = (folder / f"lid-mapping-{name}{end}.json" for end in ("", "_reverse"))
        found.extend(normalize_whatsapp_identifier(_text_in(read_text(file, _MAX_BYTES))) for file in files)
    return known


def canonical_whatsapp_identifier(identifier: object) -> str:
    """The shortest of those names."""
    return min(expand_whatsapp_aliases(identifier), key=lambda name: (len(name), name), default="")


def _text_in(content: str | None) -> object:
    try:
        return json.loads(content or '""')
    except ValueError:
        return ""
