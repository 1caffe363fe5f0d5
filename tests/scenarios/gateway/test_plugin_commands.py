"""Slash commands of plugins and of context engines, in a chat."""

from pathlib import Path

import pytest
from tests.plugin_sources import RECORDER, write_plugin

from talaria.runtime.builtin_commands import builtin_commands
from talaria.runtime.chat import Chat
from talaria.runtime.commands import Command, GivenCommand, NameTaken, Outcome
from talaria.testing.harness import Harness

GRABBER = """
def register(ctx):
    for name in ("stop", "sethome", "approve", "busy", "export", "bg", "mine"):
        ctx.register_command(name, lambda args: f"the plugin heard {args}")
"""
GRABBING_ENGINE = RECORDER + GRABBER + "    ctx.register_context_engine(Recorder())\n"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.clause("E-10")
@pytest.mark.parametrize("source", [GRABBER, GRABBING_ENGINE], ids=["plugin", "engine"])
async def test_a_plugin_loses_just_the_commands_whose_words_are_built_in_anywhere(house: Harness, source: str) -> None:
    write_plugin(house.home / "plugins" / "grabber", source)
    house.config["plugins"] = {"enabled": ["grabber"]}
    if source is GRABBING_ENGINE:
        house.config["context"] = {"engine": "recorder"}
    async with house.serve() as board:
        await house.telegram.say("/stop")
        assert [one.text for one in await house.wait_for_messages(1)] == ["Nothing is running here."]
        await house.telegram.say("/mine now")
        assert [one.text for one in await house.wait_for_messages(2)][1:] == ["the plugin heard now"]
        given = board.app.commands.parse("/sethome", "platform")
        assert isinstance(given, GivenCommand)
        assert (given.command.owner, given.command.is_for_admins) == ("", True)
        extensions = board.app.extensions
        assert extensions is not None
        problems = [problem for key, problem in extensions.problems() if key == "grabber"]
    refused = {"stop", "sethome", "approve", "busy", "export", "bg"}
    assert len(problems) == len(refused)
    assert all(any(f"cannot answer to /{word}: the built-in" in one for one in problems) for word in refused)


async def nothing(_: Chat, __: str) -> Outcome:
    return None


@pytest.mark.clause("E-10")
async def test_every_word_that_a_chat_knows_is_reserved_before_plugins_register(house: Harness) -> None:
    async with house.serve() as board:
        known = [word for one in board.app.commands.visible("platform") for word in one.words]
    assert {"stop", "q", "whoami", "new"} <= set(known)
    for word in known:
        with pytest.raises(NameTaken):
            builtin_commands().add(Command(word, "", "plugins", nothing, owner="plugin:any"))


WHO = (
    RECORDER
    + """
class Known(Recorder):
    session = "nobody"
    def on_session_start(self, session_id, **facts):
        self.session = session_id
        super().on_session_start(session_id, **facts)

def register(ctx):
    engine = Known()
    ctx.register_context_engine(engine)
    ctx.register_command("who", lambda args: f"{engine.session} heard {args}")
"""
)


async def test_a_command_of_an_engine_reaches_the_engine_of_its_chat(house: Harness) -> None:
    write_plugin(house.home / "plugins" / "recorder", WHO)
    house.config["plugins"] = {"enabled": ["recorder"]}
    house.config["context"] = {"engine": "recorder"}
    house.config["gateway"]["platforms"]["telegram"]["allowed_users"] = ["1001", "1002"]
    house.model.say("Hello.")
    async with house.serve():
        await house.telegram.say("hi")
        await house.wait_for_messages(1)
        for user in ("1001", "1002"):
            await house.telegram.say("/who tea", user=user)
        first = (await house.wait_for_messages(2))[1].text
        second = (await house.wait_for_messages(1, user="1002"))[0].text
        assert first == f"{await house.session_of('agent:main:telegram:dm:1001')} heard tea"
        assert second == f"{await house.session_of('agent:main:telegram:dm:1002')} heard tea"
        assert first != second
