"""Known secrets, planted everywhere in a conversation, are found nowhere: not on the disk, on the screen, in events, or
in what the model is sent."""

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from talaria import Agent, tool
from talaria.core.errors import TalariaError
from talaria.core.events import Event, TextDelta, ThinkingDelta, ToolBegan
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Faults, Reply, call

KEY = "sk-live-4fT9xQz7WmB2kLpR8sVd"
PASSWORD = 'S3cr+t/"päss'
ENV = f"SERVICE_API_KEY={KEY}\nDATABASE_URL=postgres://app:{quote(PASSWORD, safe='')}@db/app\n"


def disguised(secret: str) -> list[str]:
    raw = secret.encode()
    return [
        secret,
        secret[::-1],
        raw.hex(),
        raw.hex().upper(),
        quote(secret, safe=""),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
        base64.b64encode(b"a" + raw).decode(),
        base64.b64encode(b"ab" + raw).decode(),
    ]


EVERYTHING = [form for secret in (KEY, PASSWORD) for form in disguised(secret)]


def found_in(data: bytes) -> list[str]:
    """What is left of a secret; of base64, its inner part tells."""
    parts = [form[4:-4] if form.startswith(("YX", "YW")) else form for form in EVERYTHING]
    return [part for part in parts if part.encode() in data]


def found_under(home: Path) -> list[tuple[str, list[str]]]:
    files = [file for file in home.rglob("*") if file.is_file() and file.name not in (".env", "config.yaml")]
    assert files
    return [(file.name, found) for file in files if (found := found_in(file.read_bytes()))]


@pytest.fixture
def secrets(home: Path, server: ModelServer) -> None:
    (home / ".env").write_text(ENV, "utf-8")
    (home / ".env").chmod(0o600)


heard: list[str] = []


@tool
def leak(wanted: str) -> str:
    """Bring everything."""
    heard.append(wanted)
    return "\n".join(["found:", *EVERYTHING, "." * 60_000, *EVERYTHING])


@tool
def break_down() -> str:
    """Fail with everything."""
    raise ValueError(f"cannot use {KEY}")


@pytest.fixture
def agent(secrets: None, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setenv("TALARIA_HOME", str(home))
    heard.clear()
    with Agent(cwd=tmp_path, tools=[leak, break_down]) as running:
        yield running


def test_planted_secrets_are_found_nowhere(agent: Agent, server: ModelServer, home: Path) -> None:
    server.say(
        Reply(
            text=f"Of {KEY} and {KEY[::-1]} only.",
            thinking=f"They want {KEY}. Yes",
            calls=(call("leak", wanted=f"{KEY} {PASSWORD}"), call("break_down", id="call_2")),
            chunk_chars=3,
        ),
        Reply(text="".join(EVERYTHING), chunk_chars=1),
    )
    events: list[Event] = []
    report = agent.ask_sync(f"My keys are {' '.join(EVERYTHING)}!", events.append)
    assert report.outcome == "completed"
    assert found_in(report.text.encode()) == []
    assert heard == ["••• •••"]
    assert [found for event in events if (found := found_in(repr(event).encode()))] == []
    assert found_in(b"".join(request.body for request in server.requests)) == []
    assert found_under(home) == []
    shown = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert shown.startswith("Of ••• and ••• only.")
    assert shown.endswith(report.text)
    thoughts = [place for place, event in enumerate(events) if isinstance(event, ThinkingDelta)]
    assert "".join(event.text for event in events if isinstance(event, ThinkingDelta)) == "They want •••. Yes"
    assert max(thoughts) < min(place for place, event in enumerate(events) if isinstance(event, TextDelta))
    assert [event.arguments for event in events if isinstance(event, ToolBegan)] == ['{"wanted": "••• •••"}', "{}"]


def test_the_model_reads_what_was_kept_and_its_prefix_stays(agent: Agent, server: ModelServer) -> None:
    server.say(Reply(text=f"It is {KEY}."), "Yes.")
    agent.ask_sync(f"Is it {KEY}?")
    agent.ask_sync("Sure?")
    first, second = (request.json["messages"] for request in server.requests)
    assert second[: len(first)] == first
    assert [message["content"] for message in second[1:]][-2:] == ["It is •••.", "Sure?"]
    assert "Is it •••?" in str(first)


def test_an_answer_that_breaks_off_inside_of_a_secret_shows_nothing_of_it(
    agent: Agent, server: ModelServer, home: Path
) -> None:
    (home / "config.yaml").write_text((home / "config.yaml").read_text() + "agent: {api_max_retries: 1}\n")
    text = f"It is {KEY}."
    server.say(Reply(text=text, chunk_chars=4, faults=Faults(cut_inside=text[-7:-3].encode())))
    events: list[Event] = []
    with pytest.raises(TalariaError):
        agent.ask_sync("What is it?", events.append)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "It is "
    assert KEY[:8] not in repr(events)
    assert not [file for file in home.glob("state.db*") if KEY[:8].encode() in file.read_bytes()]


def test_a_key_that_a_command_prints_is_known_once_it_is_used(agent: Agent, server: ModelServer, home: Path) -> None:
    printed = "tok-9aXbYcZd8eWf"
    (home / "config.yaml").write_text(
        f"model: {{default: 'mine:m'}}\n"
        f"providers: {{mine: {{base_url: '{server.base_url}', key_command: 'echo {printed}'}}}}\n"
    )
    server.say(f"You called with {printed}.")
    report = agent.ask_sync("What did I call with?")
    assert server.requests[0].headers["authorization"] == f"Bearer {printed}"
    assert report.text == "You called with •••."
    assert not [file for file in home.glob("state.db*") if printed.encode() in file.read_bytes()]


def test_the_terminal_keeps_secrets_from_the_screen_and_from_the_home(
    talaria: Callable[..., subprocess.CompletedProcess[str]],
    secrets: None,
    server: ModelServer,
    home: Path,
    environment: dict[str, str],
) -> None:
    leaked = "\n".join(f"{form} {'.' * 1000}" for form in EVERYTHING * 10)
    Path(environment["PWD"], "leaked.txt").write_text(leaked, "utf-8")
    server.say(
        Reply(calls=(call("terminal", command="cat leaked.txt"), call("read_file", id="call_2", path="leaked.txt"))),
        f"It is {KEY}.",
    )
    ended = talaria("-q", f"Is it {KEY}?", "--yolo", "--output-format", "stream-json")
    assert ended.returncode == 0
    assert found_in((ended.stdout + ended.stderr).encode()) == []
    assert "It is •••." in ended.stdout
    assert [file for file in home.rglob("spill/*/*") if "•••" in file.read_text("utf-8")]
    assert found_under(home) == []
    assert found_in(b"".join(request.body for request in server.requests)) == []


LOGGING = """
import logging, click
from talaria.cli.context import settings
found = settings(click.Context(click.Command("any")))
key = found.environment["SERVICE_API_KEY"]
log = logging.getLogger("talaria.any")
log.warning("message %s", key)
log.warning({"key": key})
try:
    raise ValueError(key[::-1])
except ValueError:
    log.exception("broke")
"""


def test_the_log_holds_no_secret_however_it_got_there(secrets: None, home: Path, environment: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", LOGGING], env=environment, check=True, timeout=60)
    log = (home / "logs" / "talaria.log").read_text("utf-8")
    assert found_in(log.encode()) == []
    assert "message •••" in log
    assert "{'key': '•••'}" in log
    assert "ValueError: •••" in log
