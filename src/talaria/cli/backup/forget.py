"""`talaria forget`: what is kept about somebody goes, and what goes and what stays is said."""

import asyncio
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from talaria.app.build import open_store
from talaria.app.settings import Settings
from talaria.cli import context, exits
from talaria.cli.command_output import confirm, json_option, print_json, yes_option
from talaria.cli.notices import Progress, complain, say, show
from talaria.cli.sessions.remarks import remove_files
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
    "grants": ("permission given for good", "permissions given for good"),
    "pairing": ("pairing", "pairings"),
    "homes": ("home channel", "home channels"),
}
"""Of one, and of many."""


class Findings(msgspec.Struct, frozen=True):
    traces: Traces
    folders: tuple[Path, ...]
    """Where the agent worked for them, with what they sent."""
    mentions: tuple[str, ...]
    """Files of the home that have their id or name in them."""


@click.command("forget", help="Delete what is kept about somebody, named as in telegram:42.")
@click.argument("person", metavar="PLATFORM:ID")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Say what would go, and delete nothing.")
@yes_option
@json_option
@click.pass_context
def command(ctx: click.Context, person: str, is_dry_run: bool, yes: bool, as_json: bool) -> int:
    settings = context.settings(ctx)
    known = _Known(person)
    found = asyncio.run(_find_traces(settings, known))
    gone, stays = list(_describe_findings(found)), list(_stays(found, settings))
    if is_dry_run:
        _show(person, gone, stays, is_dry_run=True, as_json=as_json)
        return exits.DONE
    question = f"Delete {'; '.join(gone)} for good?"
    if gone and not yes and not confirm(question, f"{person} may be forgotten", as_json=as_json):
        say("Nothing was deleted.")
        return exits.DONE
    rest = asyncio.run(_forget(settings, known, found))
    _show(person, gone, stays, is_dry_run=False, as_json=as_json)
    if rest:
        complain(f"Older copies of what was deleted may be left in the store: {rest} Then run this once more.")
    return exits.STORE_FAILED if rest else exits.DONE


class _Known:
    """Somebody, and the names they were heard under."""

    def __init__(self, person: str) -> None:
        platform, _, user = person.partition(":")
        if not platform or not user:
            raise BadInput(
                f"{person!r} is nobody in a chat: say it as in telegram:42, the platform and their id there."
            )
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
        """Names of files in the home."""
        words = {self.whose.user, *self.names}
        spelled = "|".join(re.escape(word) for word in sorted(words) if len(word) >= MIN_WORD_CHARS)
        pattern = re.compile(rf"(?<!\w)({spelled})(?!\w)", re.IGNORECASE) if spelled else None
        for file in sorted(file for glob in MENTIONING for file in home.glob(glob)):
            if pattern is not None and pattern.search(read_text(file, MAX_READ_BYTES) or ""):
                yield str(file.relative_to(home))


def _is_private(key: str) -> bool:
    return key.split(":")[3:4] == ["dm"]


async def _find_traces(settings: Settings, known: _Known) -> Findings:
    async with open_store(settings.home) as store:
        traces = await store.forgetting.traces(known.whose)
    known.names.update(traces.names)
    folders = tuple(_folders(settings, known.whose, traces))
    return Findings(traces, folders, tuple(known.mentions(settings.home)))


def _folders(settings: Settings, whose: PersonQuery, traces: Traces) -> Iterator[Path]:
    """Only those inside the workspace: elsewhere the agent worked where somebody else told it to."""
    workspace = Path(settings.config.gateway.workspace).expanduser().resolve()
    worked_in = [Path(folder) for folder in traces.folders]
    named = workspace / folder_name(whose.platform, whose.user)
    for folder in dict.fromkeys([named, *worked_in]):
        if folder.parent == workspace and folder.is_dir() and not folder.is_symlink():
            yield folder


async def _forget(settings: Settings, known: _Known, found: Findings) -> str:
    """Why something may be left; mostly nothing."""
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
    return "" if is_erased else "another process reads it; stop the gateway."


def _describe_findings(found: Findings) -> Iterator[str]:
    traces = found.traces
    if traces.conversations:
        yield f"{_many(len(traces.conversations), 'conversation', 'conversations')} with {traces.messages:,} messages"
    for field, (one, many) in _COUNTED.items():
        count: int = getattr(traces, field)
        if count:
            yield _many(count, one, many)
    for folder in found.folders:
        yield f"{folder} ({_many(sum(file.is_file() for file in folder.rglob('*')), 'file', 'files')})"


def _stays(found: Findings, settings: Settings) -> Iterator[str]:
    traces, shared_folder = found.traces, settings.config.gateway.cwd
    if traces.spending:
        yield f"{_many(traces.spending, 'model call', 'model calls')}, counted without the name"
    if traces.shared:
        yield f"what they said in conversations of others: {_join_names(traces.shared)}"
    if shared_folder is not None and traces.conversations:
        yield f"files that they sent to {shared_folder}, where everybody's are"
    if found.mentions:
        yield f"files that mention them, for you to look at: {_join_names(found.mentions)}"
    yield "backups that were made before"


def _show(person: str, gone: Sequence[str], stays: Sequence[str], *, is_dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"ok": True, "dry_run": is_dry_run, "person": person, "gone": gone, "stays": stays})
        return
    if not gone:
        say(f"Nothing is kept about {person}.")
    for head, lines in (("Would be deleted:" if is_dry_run else "Deleted:", gone), ("Stays:", stays)):
        if lines:
            show(head, *(f"  {line}" for line in lines))


def _many(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"
