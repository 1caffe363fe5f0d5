"""`talaria send`: a message to a chat. It goes to the outbox like a reply, and a running gateway delivers it."""

import asyncio
import os
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import click
import msgspec

from talaria.app.build import open_store
from talaria.app.settings import Settings
from talaria.cli import context, exits, references
from talaria.cli.command_output import error_document, json_option, print_json
from talaria.cli.notices import complain, say
from talaria.core.clock import SystemClock
from talaria.core.errors import BadInput, UserFacing
from talaria.gateway.claims import find_holder, gateway_file
from talaria.gateway.envelope import NO_SESSION, OutgoingBody, parse_address
from talaria.gateway.gateway_status import read_status
from talaria.gateway.replies import EXPIRES_AFTER_S, Replies
from talaria.platforms.base import Address, Capabilities
from talaria.platforms.loader import is_wanted, manifests, merge_settings
from talaria.platforms.splitting import units
from talaria.store.base import Store
from talaria.store.chat_ports import Outgoing

MAX_CHARS = 1900
"""Of one message: every platform accepts this many."""
MAX_TEXT_CHARS = 100_000
LOOK_S = 0.1

_EVERYWHERE = Capabilities(MAX_CHARS, length=units)


class SendOutcome(msgspec.Struct, frozen=True):
    target: str
    state: Literal["delivered", "waiting", "failed"]
    parts: int
    error: str = ""
    """Why it is waiting, or has failed."""


class NotDelivered(UserFacing):
    """Its text is the reason."""


@click.command("send", help="Send a message to a chat. TARGET is platform:chat, or a platform for its home channel.")
@click.argument("target", metavar="TARGET")
@click.argument("text", required=False)
@click.option("--file", "files", multiple=True, type=click.Path(path_type=Path), help="Also send this file.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for delivery.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context, target: str, text: str | None, files: tuple[Path, ...], wait_s: float, as_json: bool
) -> int:
    settings = context.settings(ctx)
    platform, _, chat = target.partition(":")
    if platform not in (set_up := platforms(settings)):
        if (manifest := manifests().get(platform)) is not None:
            raise BadInput(f"{manifest.label} is not set up. {manifest.how_to} See: talaria gateway platforms")
        known = {*set_up, *manifests()}
        near = get_close_matches(platform, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known platforms: {', '.join(sorted(known))}."
        raise BadInput(f"There is no platform {platform!r}; {hint}")
    words, paths = _read_message(text, files)
    sent = asyncio.run(_send(settings, platform, chat, settings.redactor.text(words), paths, wait_s))
    if as_json:
        error = {"error": error_document(NotDelivered(sent.error))} if sent.state == "failed" else {}
        print_json({**msgspec.structs.asdict(sent), "ok": sent.state != "failed", **error})
    match sent.state:
        case "delivered":
            say(f"Delivered to {sent.target}.")
            return exits.DONE
        case "failed":
            complain(f"Not delivered to {sent.target}: {sent.error}")
            return exits.PROVIDER_FAILED
        case "waiting":
            stay = " Leave the files where they are until then." if files else ""
            say(f"Stored for {sent.target}, and not delivered yet: {sent.error}{stay}")
            return exits.LIMIT_REACHED if wait_s > 0 else exits.DONE


def platforms(settings: Settings) -> Sequence[str]:
    """Those that are set up. Those of plugins count if the settings name them or the running gateway has them."""
    named, status = settings.config.gateway.platforms, read_status(settings.home)
    wanted = [name for name, one in manifests().items() if is_wanted(one, named.get(name), settings.environment)]
    others = named.keys() - manifests().keys() if settings.config.wants_plugins else ()
    connected = [one.name for one in status.platforms] if status else ()
    return list(dict.fromkeys((*wanted, *others, *connected)))


def _read_message(text: str | None, files: Sequence[Path]) -> tuple[str, Sequence[Path]]:
    is_read = text == "-" or (text is None and not files and references.is_piped())
    words = references.read_stdin() if is_read else (text or "").encode("utf-8", "replace").decode().strip()
    if not words and not files:
        raise BadInput("There is nothing to send: give the text, or pipe it in.")
    if len(words) > MAX_TEXT_CHARS:
        raise BadInput(f"A message of {len(words):,} characters is too long for a chat: send it with --file.")
    paths: list[Path] = []
    for file in files:
        try:
            paths.append(file.resolve(strict=True))
        except (OSError, RuntimeError) as fault:
            raise BadInput(f"Cannot send {file}: it does not exist.") from fault
        if not paths[-1].is_file():
            raise BadInput(f"Cannot send {file}: it is not a file.")
    return words, paths


async def _send(
    settings: Settings, platform: str, chat: str, words: str, files: Sequence[Path], wait_s: float
) -> SendOutcome:
    async with open_store(settings.home) as store:
        if chat:
            where = parse_address(platform, chat)
        elif chosen := await store.chats.home(platform):
            where = Address.parse(chosen)
        else:
            raw, manifest = settings.config.gateway.platforms.get(platform, {}), manifests().get(platform)
            named = merge_settings(manifest, raw, settings.environment) if manifest else raw
            if not named.get("home_channel"):
                raise BadInput(
                    f"{platform} has no home channel: name a chat ({platform}:CHAT), or send /sethome in one."
                )
            where = parse_address(platform, str(named["home_channel"]))
        key, replies = f"send:{os.urandom(8).hex()}", Replies(where, _EVERYWHERE, SystemClock())
        rows = list(replies.parts(key, words)) if words else []
        for number, file in enumerate(files):
            rows.append(replies.row(f"{key}:file:{number}", OutgoingBody(file=str(file), file_name=file.name)))
        await store.outbox.add(NO_SESSION, rows)
        is_running = find_holder(gateway_file(settings.home)) is not None
        state, error = await _await_delivery(store, rows, wait_s if is_running else 0)
        if state == "waiting":
            due = await store.outbox.list_due(str(where))  # earlier messages go first, so their errors count, too
            error = _explain_waiting(settings.home, platform, next((row.error for row in due if row.error), ""))
    return SendOutcome(str(where), state, len(rows), error)


async def _await_delivery(
    store: Store, rows: Sequence[Outgoing], wait_s: float
) -> tuple[Literal["delivered", "waiting", "failed"], str]:
    """With the reason, if it failed."""
    deadline = time.monotonic() + wait_s
    while True:
        found = [row for one in rows if (row := await store.outbox.find(one.key)) is not None]
        if lost := [row for row in found if row.state in ("failed", "expired")]:
            return "failed", lost[0].error.rstrip(".") + "."
        if all(row.state == "sent" for row in found):
            return "delivered", ""
        if time.monotonic() >= deadline:
            return "waiting", ""
        await asyncio.sleep(LOOK_S)


def _explain_waiting(home: Path, platform: str, last_error: str) -> str:
    """Why it is not delivered yet, and what to do."""
    waits = f"The message waits for {EXPIRES_AFTER_S / 3600:.0f} hours"
    if find_holder(gateway_file(home)) is None:
        return f"no gateway is running. {waits}; `talaria gateway start` starts one."
    status = read_status(home)
    complaints = [one for one in status.complaints(time.time()) if one.startswith(f"{platform} is ")] if status else []
    why = next(iter(complaints), last_error) or "the gateway is still trying."
    return f"{why} {waits}; see `talaria gateway outbox`."
