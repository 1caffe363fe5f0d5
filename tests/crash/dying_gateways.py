"""Gateways that die: how tests start them, what their model says, and what must hold of all that they leave."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.rules import transcript_problems

from talaria.core.entries import Entry, MessageAdded, TurnEnded, TurnStarted
from talaria.core.messages import Message, ToolResult, User
from talaria.store.base import Store
from talaria.testing.crash import Moment
from talaria.testing.servers.model_server import RecordedRequest
from talaria.testing.servers.scripted_replies import Faults, Reply, call

ROOT = Path(__file__).parents[2]

TAG = re.compile(r"\bask-(\w+)")


def answer(tag: str) -> str:
    """What the model says when asked `ask-TAG`; long enough for two messages if that begins with `long`."""
    padding = [f"{tag} says {number}." for number in range(330 if tag.startswith("long") else 0)]
    return " ".join([f"begin-{tag}", *padding, f"end-{tag}"])


def respond(request: RecordedRequest) -> Reply:
    """The same answers again after any crash: told from the conversation alone."""
    messages: Sequence[dict[str, Any]] = request.json["messages"]
    asked = max(place for place, one in enumerate(messages) if one["role"] == "user" and TAG.search(_text(one)))
    tags = TAG.findall(_text(messages[asked]))
    called = {made["id"] for one in messages[asked:] for made in one.get("tool_calls") or ()}
    for tag in tags:
        if tag.startswith("tool") and f"call-{tag}" not in called:
            return Reply(calls=(call("effect", id=f"call-{tag}", mark=tag),))
    words = "\n\n".join(answer(tag) for tag in tags)
    is_slow = any("slow" in tag for tag in tags)
    return Reply(words, chunk_chars=len(words) // 5 + 1, faults=Faults(chunk_delay_s=0.05 if is_slow else 0))


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


class Zygote:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.gateway_child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def start(self, job: dict[str, object]) -> int:
        """The child's process number."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return await self.told()

    async def told(self) -> int:
        assert self._process.stdout is not None
        return int(await asyncio.to_thread(self._process.stdout.readline))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def send_signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it was quicker
        os.kill(pid, number)


def _is_person(message: Message) -> bool:
    return isinstance(message, User) and message.author == "person"


def _unended(entries: Sequence[Entry]) -> list[str]:
    turns = [entry for entry in entries if isinstance(entry, TurnStarted | TurnEnded)]
    shape = [(type(turn).__name__, turn.turn) for turn in turns]
    wanted = [
        (name, turn) for turn in dict.fromkeys(turn.turn for turn in turns) for name in ("TurnStarted", "TurnEnded")
    ]
    return [] if shape == wanted else [f"turns {shape}"]


def _dishonest(world: Sequence[str], messages: Sequence[Message]) -> Iterator[str]:
    for result in (one for one in messages if isinstance(one, ToolResult)):
        happened = f"effect {result.call_id.removeprefix('call-')}" in world
        if result.disposition in ("none", "done") and happened != (result.disposition == "done"):
            yield f"the model was told {result.disposition} of {result.call_id}"


async def journal_problems(store: Store, world: Sequence[str], asked: list[str]) -> AsyncIterator[str]:
    """Of all conversations. Adds what was asked in them."""
    for session in await store.sessions.list():
        entries = [recorded.entry for recorded in await store.journal.entries(session.id)]
        messages = [entry.message for entry in entries if isinstance(entry, MessageAdded)]
        asked += [tag for one in messages if _is_person(one) for tag in TAG.findall(one.text)]
        for problem in (*transcript_problems(messages), *_unended(entries)):
            yield f"{session.id}: {problem}"
        for problem in _dishonest(world, messages):
            yield problem


def effects_twice(world: Sequence[str]) -> list[str]:
    done = Counter(line for line in world if line.startswith("effect "))
    return [f"{line} happened {times} times" for line, times in done.items() if times > 1]


def ends(plan: Sequence[Moment]) -> list[Moment]:
    """The first of each name, and the last of what is done."""
    last = {moment.name: moment for moment in plan if moment.name.startswith("after")}
    return [moment for moment in plan if moment.occurrence == 1 or moment is last.get(moment.name)]
