"""Deleting what git cannot bring back is asked about: as it is used, with a scripted model, commands in the sandbox and
the real command line."""

import json
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.scenarios.conftest import commands, environment, home, server, talaria
from tests.scenarios.test_cli_terminal import QUESTION, Terminal

from talaria.app.build import Application, open_application
from talaria.app.settings import read_settings
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.core.questions import Answer, Question
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

__all__ = ["commands", "environment", "home", "server", "talaria"]

Talaria = Callable[..., "subprocess.CompletedProcess[str]"]
WIPE = "rm -rf thesis.txt .git/refs .git/objects"
REASON = "it deletes thesis.txt, which is not in git; it damages the git repository: .git/refs, .git/objects"


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


@pytest.fixture
def project(environment: dict[str, str]) -> Path:
    folder = Path(environment["PWD"])
    subprocess.run(["git", "init", "--quiet", str(folder)], env=environment, check=True)
    (folder / "thesis.txt").write_text("years of work")
    return folder


def is_whole(project: Path) -> bool:
    return all((project / name).exists() for name in ("thesis.txt", ".git/refs", ".git/objects"))


def told(server: ModelServer) -> str:
    """What the model was told last."""
    return json.dumps(server.requests[-1].json["messages"][-1])


def test_at_a_terminal_the_question_says_what_would_be_lost_and_no_keeps_it(
    environment: dict[str, str], server: ModelServer, project: Path
) -> None:
    server.say(Reply(calls=(call("terminal", command=WIPE),)), "All told.")
    with Terminal(environment) as terminal:
        terminal.answer("› ", "go\n")
        asked = terminal.see(QUESTION)
        assert f"Run this command?\r\n  {WIPE}\r\n" in asked
        assert REASON in " ".join(asked.split())
        assert "[s]ession: this command" in asked
        terminal.type("n\n")
        terminal.see("All told.")
    assert is_whole(project)
    assert "The person said no" in told(server)


def test_where_nobody_can_be_asked_it_is_refused(talaria: Talaria, server: ModelServer, project: Path) -> None:
    server.say(Reply(calls=(call("terminal", command=WIPE),)), "Sorry.")
    assert talaria("-q", "go").returncode == 6
    assert f"needs a person's consent, and nobody is here to give it: {REASON}." in told(server)
    assert is_whole(project)


def test_whoever_switches_questions_off_is_not_asked(
    talaria: Talaria, server: ModelServer, project: Path, home: Path
) -> None:
    """The control: the very same command would have done it."""
    with (home / "config.yaml").open("a") as config:
        config.write("approvals: {mode: off}\n")
    server.say(Reply(calls=(call("terminal", command=WIPE),)), "Done.")
    talaria("-q", "go")
    assert [(project / name).exists() for name in ("thesis.txt", ".git/refs", ".git/objects")] == [False] * 3


@asynccontextmanager
async def opened(home: Path, server: ModelServer, **config: object) -> AsyncGenerator[Application]:
    model = {"default": "test-model", "base_url": server.base_url}
    (home / "config.yaml").write_text(json.dumps({"model": model, **config}))
    async with open_application(read_settings(home)) as app:
        yield app


async def ask(app: Application, server: ModelServer, project: Path, ada: Ada, *calls: tuple[str, str]) -> None:
    """A conversation of one turn, in which the model makes these calls, one after the other."""
    names = {"terminal": "command", "execute_code": "code"}
    for number, (tool, text) in enumerate(calls):
        server.say(Reply(calls=(call(tool, id=f"c{number}", **{names[tool]: text}),)))
    server.say("Done.")
    await app.session(id=SessionId("s1"), cwd=project, origin="terminal", person=ada).ask(user("go"))


async def test_a_yes_for_the_session_covers_this_command_only(home: Path, server: ModelServer, project: Path) -> None:
    (project / "notes.txt").write_text("x")
    ada = Ada("session", "no")
    async with opened(home, server) as app:
        again = "rm thesis.txt; echo more > thesis.txt"
        await ask(app, server, project, ada, *[("terminal", again)] * 2, ("terminal", "rm notes.txt"))
    assert [one.content for one in ada.asked] == [again, "rm notes.txt"]
    assert [(one.longest, one.in_session) for one in ada.asked] == [("session", "this command")] * 2
    assert (project / "notes.txt").exists()


async def test_a_yes_to_any_command_does_not_cover_deletions(home: Path, server: ModelServer, project: Path) -> None:
    ada = Ada("session", "no")
    async with opened(home, server, terminal={"backend": "local"}) as app:
        await ask(app, server, project, ada, ("terminal", "true"), ("terminal", "ls"), ("terminal", WIPE))
    assert [one.content for one in ada.asked] == ["true", WIPE]
    assert is_whole(project)


async def test_it_counts_where_the_shell_is_by_then_and_scripts_count_too(
    home: Path, server: ModelServer, project: Path
) -> None:
    (project / "data").mkdir()
    (project / "data/raw.csv").write_text("1")
    ada = Ada()
    script = "import shutil; shutil.rmtree('../data')"
    calls = (("terminal", "cd data"), ("terminal", "rm *"), ("execute_code", script), ("terminal", "rm nothing"))
    async with opened(home, server) as app:
        await ask(app, server, project, ada, *calls)
    reasons = [(one.content, one.reason) for one in ada.asked]
    lost = "it deletes data/raw.csv, which is not in git"
    assert reasons == [("rm *", lost), (script, lost)]
    assert (project / "data/raw.csv").exists()


async def test_rules_allow_deletions_as_they_allow_other_commands(
    home: Path, server: ModelServer, project: Path
) -> None:
    ada = Ada()
    async with opened(home, server, approvals={"allow": ["terminal(rm *)"]}) as app:
        await ask(app, server, project, ada, ("terminal", "rm thesis.txt"))
    assert not ada.asked
    assert not (project / "thesis.txt").exists()
