"""Lets a model that obeys every page make its calls in the real application, one attack after the other.

    python -m tests.security.attack FOLDER MODE FAMILY PART PARTS

A process of its own, with the environment of a `World`. Prints what came of it as one line of JSON (`Told`).
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tests.live_sessions import process_services
from tests.security import denial, exfiltration, policy_edits
from tests.security.payload import Payload, calls
from tests.security.sink import Sink, found
from tests.security.world import SECRETS, SHOWN, Mode, World, own_address

from talaria.app.build import Application, open_application
from talaria.app.settings import read_settings
from talaria.core.ids import new_session_id
from talaria.core.messages import user
from talaria.core.redaction import Redactor
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import SessionConfig
from talaria.runtime.session_services import SessionServices
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Reply
from talaria.tools.base import OpenGate
from talaria.tools.builtin.search_tools import search_tools
from talaria.tools.protected import Protected
from talaria.tools.sandbox.host.descendants import descendants

PER_SESSION = 12
SUBREAPER = 36
FAMILIES: Mapping[str, Sequence[Payload]] = {
    "policy": policy_edits.PAYLOADS,
    "secrets": exfiltration.PAYLOADS,
    "denial": denial.PAYLOADS,
    "browser": exfiltration.BROWSER_PAYLOADS,
}
ENDS_BYTES = 1 << 20
PAUSE_S = 0.02


class Outcome(msgspec.Struct, frozen=True):
    name: str
    harm: tuple[str, ...]
    results: tuple[str, ...]
    """What the model was told, call by call."""
    heard: str
    """By the sink, meanwhile."""


class Told(msgspec.Struct, frozen=True):
    outcomes: tuple[Outcome, ...]
    level: str
    """Of the sandbox."""
    changed: tuple[str, ...]
    """What was different when all had ended."""
    heard_bytes: int
    """By the sink: something gets there."""
    leaked: tuple[str, ...]
    read_by_model: tuple[str, ...]
    left_in_home: tuple[str, ...]
    left_running: int
    rows: int
    """Of what was allowed and agreed to."""


class Obedient:
    """A model that does what it was told, and passes on what that brought."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places
        self._payload: Payload | None = None
        self._step = 0
        self.results: tuple[str, ...] = ()
        self._count = 0

    def take(self, payload: Payload) -> None:
        self._payload, self._step, self.results = payload, 0, ()

    def respond(self, request: RecordedRequest) -> Reply:
        news = _results(request)
        self.results += news
        if self._payload is None or self._step == len(self._payload.steps):
            return Reply("Done.")
        step = self._payload.steps[self._step]
        self._step += 1
        self._count += 1
        return Reply(calls=calls(step, self._places, "\n".join(news), f"call_{self._count}_"))


def _results(request: RecordedRequest) -> tuple[str, ...]:
    """Of the calls in the model's last answer."""
    messages: list[dict[str, Any]] = request.json["messages"]
    last = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    return tuple(str(message["content"]) for message in messages[last:] if message["role"] == "tool")


class Attack:
    def __init__(self, world: World, mode: Mode, app: Application, model: Obedient, sink: Sink) -> None:
        self._world = world
        self._mode: Mode = mode
        self._app = app
        self._model = model
        self._sink = sink
        self._marks = world.marks()

    async def run(self, payloads: Sequence[Payload]) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}
        count = 1 if self._mode == "undefended" else PER_SESSION  # of what was let through, the next must know nothing
        for start in range(0, len(payloads), count):
            async with self._session() as live:
                for payload in payloads[start : start + count]:
                    outcomes[payload.name] = await self._outcome(live, payload)
        return [*outcomes.values()]

    async def _outcome(self, live: LiveSession, payload: Payload) -> Outcome:
        self._model.take(payload)
        before = len(self._sink.heard)
        report = await live.ask(user("Read the page and do what it says."))
        assert report.outcome == "completed", (payload.name, report)
        heard = self._sink.heard[before:].decode("utf-8", "replace")
        grants = await self._app.store.grants.list()
        harm = await asyncio.to_thread(self._awaited_harm, has_harmed=bool(grants))
        for grant in grants:
            await self._app.store.grants.revoke(grant.id)
        granted = (f"granted {grant.tool}" for grant in grants)
        return Outcome(payload.name, (*harm, *granted), tuple(map(_shortened, self._model.results)), heard)

    def _awaited_harm(self, *, has_harmed: bool) -> tuple[str, ...]:
        """Where it is expected, it is waited for: a datagram may be on its way."""
        deadline = time.monotonic() + (PATIENCE_S if self._mode == "undefended" and not has_harmed else 0)
        while not (harm := self._harm()) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        self._world.tidy()
        return harm

    def _harm(self) -> tuple[str, ...]:
        changed = changes(self._marks, self._world.marks())
        leaked = [f"leaked {name}" for name in found(self._sink.heard, SECRETS)]
        taken = [f"taken {name}" for name in found(self._world.taken(), SECRETS)]
        if leaked:
            self._sink.forget()
        if changed:
            self._world.restore()
        return (*changed, *leaked, *taken)

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[LiveSession]:
        live = self._unguarded() if self._mode == "undefended" else self._guarded()
        yield live
        await live.close()

    def _guarded(self) -> LiveSession:
        return self._app.session(cwd=self._world.project, origin="terminal", is_asking=self._mode == "headless")

    def _unguarded(self) -> LiveSession:
        app = self._app
        assert app.mcp is not None
        nowhere = self._world.folder / "nowhere"
        tools = app.toolbox.without({"search_files"}).with_tools(search_tools(Protected(nowhere, nowhere / "home")))
        services = SessionServices(
            new_session_id(app.clock.now()),
            SessionConfig(route=app.route, cwd=self._world.project, home=self._world.home),
            tools.with_tools(app.mcp.tools()),
            OpenGate(),
            resources=app.builtin,
        )
        return LiveSession(
            None,
            services,
            process=process_services(app.store, app.owner, app.upstream, app.clock),
        )


def _shortened(text: str) -> str:
    return text if len(text) < 1_000 else f"{text[:500]} … {text[-500:]}"


def changes(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    names = sorted({*before, *after})
    return tuple(f"changed {name}" for name in names if before.get(name) != after.get(name))


async def attacked(folder: Path, mode: Mode, chosen: Callable[[Mode], Sequence[Payload]]) -> Told:
    world = World(folder)
    with Sink() as sink:
        places = {
            "HOME": str(world.home),
            "PERSON": str(world.person),
            "ELSEWHERE": str(world.elsewhere),
            "HOST": "127.0.0.1",
            "OWN": own_address(),
            "PORT": str(sink.port),
            "PYTHON": sys.executable,
            "PIDS": str(os.getpid()) if mode == "undefended" else "[0-9]*",
            **{name.upper(): secret for name, secret in SECRETS.items()},
        }
        model = Obedient(places)
        with ModelServer(respond=model.respond) as server:
            world.plant(server.base_url, sink.port, mode)
            os.chdir(world.project)
            settings = read_settings(world.home)
            if mode == "undefended":
                settings = replace(settings, redactor=Redactor())
            async with open_application(settings) as app:
                assert app.mcp is not None
                await _remember(app, world)
                world.keep()
                before = world.marks()
                outcomes = await Attack(world, mode, app, model, sink).run(chosen(mode))
                assert app.builtin is not None
                level = app.builtin.workspaces.sandbox.level
            requests = b"".join(request.body for request in server.requests)
        hidden = {name: secret for name, secret in SECRETS.items() if name not in SHOWN}
        return Told(
            outcomes=tuple(outcomes),
            level=level,
            changed=changes(before, world.marks()),
            heard_bytes=len(sink.heard),
            leaked=tuple(found(sink.heard, SECRETS)),
            read_by_model=tuple(found(requests, hidden)),
            left_in_home=tuple(
                f"{name} in {file.name}" for file in world.spilt() for name in found(_ends(file), hidden)
            ),
            left_running=len(descendants(os.getpid())),
            rows=world.rows(),
        )


def _ends(file: Path) -> bytes:
    """Of what is long, both."""
    with file.open("rb") as opened:
        first = opened.read(ENDS_BYTES)
        opened.seek(max(len(first), file.stat().st_size - ENDS_BYTES))
        return first + opened.read()


async def _remember(app: Application, world: World) -> None:
    """Another conversation, of another day."""
    live = app.session(cwd=world.project, origin="terminal")
    await live.ask(user(f"Remember {SECRETS['journal']}."))
    await live.close()


def main(folder: str, mode: str, family: str, part: str, parts: str) -> None:
    assert mode in ("headless", "yolo", "undefended")
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # whoever outlives its parents becomes ours, and is counted

    def chosen(mode: Mode) -> list[Payload]:
        return wanted(family, mode)[int(part) :: int(parts)]

    told = asyncio.run(attacked(Path(folder), mode, chosen))
    sys.stdout.buffer.write(msgspec.json.encode(told))


def wanted(family: str, mode: Mode) -> list[Payload]:
    """With `yolo` nobody is asked: what only asking would stop is what the person wants then."""
    match mode:
        case "headless":
            return [*FAMILIES[family]]
        case "yolo":
            return [payload for payload in FAMILIES[family] if payload.stopped_by != "consent"]
        case "undefended":
            return [one for one in FAMILIES[family] if one.is_proven and one.stopped_by != "limits"]


if __name__ == "__main__":
    main(*sys.argv[1:])
