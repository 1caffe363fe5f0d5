"""The key under which a chat finds its conversation: `agent:<profile>:<platform>:<kind>[:chat][:thread][:person]`; and
how people write which chat they mean.

What the folder is called in which the agent works for somebody in a chat.
"""

import hashlib
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

from talaria.platforms.base import Address, ChatKind

MAIN = "main"
"""How the default profile is called in keys."""

KeyKind = Literal["dm", "group", "thread"]


class KeyRules(msgspec.Struct, frozen=True):
    profile: str = MAIN
    is_group_per_person: bool = True
    """In a group everybody has a conversation of their own."""
    is_thread_per_person: bool = False
    """In a thread, too."""


def session_key(where: Address, kind: ChatKind, person: str, rules: KeyRules) -> str:
    """`person` is the id of whoever speaks, on that platform."""
    if kind == "dm":
        return _joined(rules.profile, where.platform, "dm", where.chat or person, where.thread)
    is_per_person = rules.is_thread_per_person if where.thread else rules.is_group_per_person
    named: KeyKind = "thread" if where.thread else "group"
    return _joined(rules.profile, where.platform, named, where.chat, where.thread, person if is_per_person else "")


def is_everybodys(key: str, where: Address, kind: ChatKind, rules: KeyRules) -> bool:
    """Of a conversation that all people there have together."""
    return kind == "group" and key == session_key(where, kind, "", rules)


def given_address(platform: str, given: str) -> Address:
    """As people write it: `CHAT` or `CHAT:THREAD`. A room of Matrix may have a colon of its own, and a thread there
    begins with `$`."""
    is_room = given.startswith("!")
    chat, _, thread = given.partition(":$" if is_room else ":")
    return Address(platform, unquote(chat), unquote(f"${thread}" if is_room and thread else thread))


def _joined(*parts: str) -> str:
    """A colon inside of a part must not make it two: no chat may pass for another."""
    return ":".join(["agent", *(quote(part, safe="!#@$+=,/ -") for part in parts if part)])


def folder_name(platform: str, whose: str) -> str:
    """No two people share one, whatever signs their ids have; what is said together has one of its own."""
    safe = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in whose)[:60]
    told_apart = "" if safe == whose else f"-{hashlib.sha256(whose.encode()).hexdigest()[:8]}"
    return f"{platform}-{safe}{told_apart}"
