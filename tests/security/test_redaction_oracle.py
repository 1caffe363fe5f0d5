"""What stands behind `•••` cannot be found out piece by piece, by reading or patching a file of the project."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from talaria import Agent
from talaria.testing import ModelServer, Reply, call

SECRET = "sk-live-Qm3xT9vK2pLw8Zr5"


class Talk:
    """A conversation about a file of the project."""

    def __init__(self, agent: Agent, model: ModelServer, file: Path) -> None:
        self._agent = agent
        self._model = model
        self.file = file

    async def use(self, tool: str, **arguments: Any) -> str:
        number = len(self._model.requests)
        self._model.say(Reply(calls=(call(tool, id=f"c{number}", path=self.file.name, **arguments),)), "Done.")
        await self._agent.ask("Go.")
        return str(self._model.requests[-1].json["messages"][-1]["content"])


@pytest.fixture
async def talk(tmp_path: Path, run_folder: None) -> AsyncIterator[Talk]:
    home, project = tmp_path / "home", tmp_path / "project"
    for place in (home, project):
        place.mkdir(mode=0o700)
    with ModelServer() as model:
        (home / "config.yaml").write_text(f"model: {{default: test-model, base_url: '{model.base_url}'}}\n")
        (home / ".env").write_text(f"SERVICE_API_KEY={SECRET}\n")
        (home / ".env").chmod(0o600)
        async with Agent(home=home, cwd=project) as agent:
            yield Talk(agent, model, project / "settings")


async def test_a_patch_answers_the_same_whatever_the_secret_is(talk: Talk) -> None:
    line = "The key of the service that sends all mail of this house ="
    content = f"one\n{line} {SECRET}\nhex={SECRET.encode().hex()}\n"
    talk.file.write_text(content)
    assert SECRET[:8] not in await talk.use("read_file")
    right, wrong = [await talk.use("patch", old=f"{line} {piece}", new="x") for piece in ("sk-live-Q", "sk-live-R")]
    assert right == wrong
    assert "does not occur" in right
    assert f"The nearest is line 2:\n2|{line} •••" in right
    assert talk.file.read_text() == content


async def test_what_is_beside_a_secret_can_be_patched_and_the_secret_stays(talk: Talk) -> None:
    talk.file.write_text(f"one\nKEY={SECRET}\nthree\n")
    await talk.use("read_file")
    told = await talk.use("patch", edits=[{"old": "KEY=", "new": f"{'x' * 290}="}, {"old": "three", "new": "four"}])
    assert "+" + "x" * 290 + "=•••" in told
    assert talk.file.read_text() == f"one\n{'x' * 290}={SECRET}\nfour\n"


async def test_a_secret_that_is_cut_by_the_end_of_a_line_or_page_is_not_shown_in_part(talk: Talk) -> None:
    talk.file.write_text(f"{'x' * 1_990}{SECRET}\n{SECRET[:12]}\n{SECRET[12:]}\nlast\n")
    shown = [await talk.use("read_file"), *[await talk.use("read_file", offset=line, limit=1) for line in (1, 2, 3)]]
    assert [text for text in shown if "sk-live" in text or SECRET[12:] in text] == []
    assert "last" in shown[0]
