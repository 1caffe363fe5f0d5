"""`talaria forget`: delete what is stored about a person, and report what is deleted and what is kept."""

import asyncio
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from talaria.app.build import open_store
from talaria.app.session_files import remove_files
from talaria.app.settings import Settings
from talaria.cli import context, exits
from talaria.cli.command_output import confirm, json_option, print_json, yes_option
from talaria.cli.notices import Progress, complain, say, show
from talaria.core.errors import BadInput, StoreUnavailable
from talaria.core.fs import read_text
from talaria.gateway.envelope import KeyRules, folder_name, read_received, session_key
from talaria.platforms.base import Address
from talaria.store.forgetting import PersonQuery, Traces

MENTIONING = ("SOUL.md", "config.yaml", "memories/**/*", "logs/*")
MAX_READ_BYTES = 16 << 20
MIN_WORD_CHARS = 3
SHOWN = 8

_COUNTED = {
    "inbox": ("message received", "messages received"),
    "outbox": ("reply", "replies"),
    "chats": ("chat", "chats"),
    "approvals": ("approval", "approvals"),
    "grants": ("standing approval", "standing approvals"),
    "signals": ("request to a running turn", "requests to running turns"),
    "tokens": ("API token", "API tokens"),
    "pairing": ("pairing", "pairings"),
    "homes": ("home channel", "home channels"),
}
"""Singular and plural."""


class Findings(msgspec.Struct, frozen=True):
    traces: Traces
    folders: tuple[Path, ...]
    """Where the agent worked for them, with the files they sent."""
    mentions: tuple[str, ...]
    """Files in the home that contain their id or name."""


@click.command("forget", help="Delete what is stored about a person, named as in telegram:42.")
@click.argument("person", metavar="PLATFORM:ID")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Only say what would be deleted.")
@yes_option
@json_option
@click.pass_context
def command(ctx: click.Context, person: str, is_dry_run: bool, yes: bool, as_json: bool) -> int:
    settings = context.settings(ctx)
    known = _Person(person)
    found = _find_traces(settings, known)
    gone, kept = _describe(found, settings)
    if is_dry_run:
        _show(person, gone, kept, is_dry_run=True, as_json=as_json)
        return exits.DONE
    question = f"Delete {'; '.join(gone)} for good?"
    if gone and not yes and not confirm(question, f"{person} may be forgotten", as_json=as_json):
        say("Nothing was deleted.")
        return exits.DONE
    rest = asyncio.run(_forget(settings, known, found))
    _show(person, gone, kept, is_dry_run=False, as_json=as_json)
    if rest:
        complain(f"Older copies of what was deleted may remain in the store: {rest} Then run this again.")
    return exits.STORE_FAILED if rest else exits.DONE


class _Person:
    """A person on a platform, and the names they have used."""

    def __init__(self, person: str) -> None:
        platform, _, user = person.partition(":")
        if not platform or not user:
            raise BadInput(f"{person!r} does not name a person; use the platform and their id, as in telegram:42.")
        self.person = person
        self.names: set[str] = set()
        self._own = session_key(Address(platform, user), "dm", user, KeyRules()).rpartition(":")[2]
        self.whose = PersonQuery(platform, user, self._has_said, self._has_chat, _is_private)

    def _has_said(self, body: str) -> bool:
        try:
            principal = read_received(body).principal
        except msgspec.DecodeError:
            return False
        if principal.person != self.person:
            return False
        self.names.add(principal.name)
        return True

    def _has_chat(self, key: str) -> bool:
        match key.split(":"):
            case [_, _, self.whose.platform, "dm", chat, *_]:
                return chat == self._own
            case [_, _, self.whose.platform, _, _, *_, last]:
                return last == self._own
            case _:
                return False

    def mentions(self, home: Path) -> Iterator[str]:
        words = {self.whose.user, *self.names}
        spelled = "|".join(re.escape(word) for word in sorted(words) if len(word) >= MIN_WORD_CHARS)
        pattern = re.compile(rf"(?<!\w)({spelled})(?!\w)", re.IGNORECASE) if spelled else None
        for file in sorted(file for glob in MENTIONING for file in home.glob(glob)):
            if pattern is not None and pattern.search(read_text(file, MAX_READ_BYTES) or ""):
                yield str(file.relative_to(home))


def _is_private(key: str) -> bool:
    return key.split(":")[3:4] == ["dm"]


def _find_traces(settings: Settings, known: _Person) -> Findings:
    traces = context.with_store(settings.home, lambda store: store.forgetting.traces(known.whose))
    known.names.update(traces.names)
    workspace = Path(settings.config.gateway.workspace).expanduser().resolve()
    own = workspace / folder_name(known.whose.platform, known.whose.user)
    folders = tuple(
        folder
        for folder in dict.fromkeys([own, *map(Path, traces.folders)])
        if folder.parent == workspace and folder.is_dir() and not folder.is_symlink()
    )  # folders elsewhere were somebody else's choice
    return Findings(traces, folders, tuple(known.mentions(settings.home)))


async def _forget(settings: Settings, known: _Person, found: Findings) -> str:
    """Returns why older copies may remain, if they may."""
    async with open_store(settings.home) as store:
        traces = await store.forgetting.forget(known.whose)
        for session in traces.conversations:
            remove_files(settings.home, session)
        for folder in found.folders:
            shutil.rmtree(folder, ignore_errors=True)
        with Progress("Overwriting what was deleted"):
            try:
                is_erased = await store.erase()
            except StoreUnavailable as fault:
                return str(fault)
    return "" if is_erased else "another process is reading it; stop the gateway."


def _describe(found: Findings, settings: Settings) -> tuple[list[str], list[str]]:
    """What is deleted, and what is kept."""
    traces, shared_folder = found.traces, settings.config.gateway.cwd
    gone: list[str] = []
    if traces.conversations:
        conversations = _count(len(traces.conversations), "conversation", "conversations")
        gone.append(f"{conversations} with {traces.messages:,} messages")
    for field, (one, many) in _COUNTED.items():
        if count := getattr(traces, field):
            gone.append(_count(count, one, many))
    for folder in found.folders:
        files = sum(file.is_file() for file in folder.rglob("*"))
        gone.append(f"{folder} ({_count(files, 'file', 'files')})")
    kept: list[str] = []
    if traces.spending:
        kept.append(f"{_count(traces.spending, 'model call', 'model calls')}, counted without their name")
    if traces.shared:
        kept.append(f"what they said in other people's conversations: {_join_names(traces.shared)}")
    if shared_folder is not None and traces.conversations:
        kept.append(f"files they sent to {shared_folder}, which everybody shares")
    if found.mentions:
        kept.append(f"files that mention them, for you to check: {_join_names(found.mentions)}")
    return gone, [*kept, "backups made before"]


def _show(person: str, gone: Sequence[str], kept: Sequence[str], *, is_dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"ok": True, "dry_run": is_dry_run, "person": person, "gone": gone, "stays": kept})
        return
    if not gone:
        say(f"Nothing is stored about {person}.")
    for head, lines in (("Would be deleted:" if is_dry_run else "Deleted:", gone), ("Kept:", kept)):
        if lines:
            show(head, *(f"  {line}" for line in lines))


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"
