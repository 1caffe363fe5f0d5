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
async def test_a_plugin_loses_just_the_commands_whose_words_are_built_in_anywhere(
    harness: Harness, source: str
) -> None:
    write_plugin(harness.home / "plugins" / "grabber", source)
    harness.config["plugins"] = {"enabled": ["grabber"]}
    if source is GRABBING_ENGINE:
        harness.config["context"] = {"engine": "recorder"}
    async with harness.serve() as gateway_app:
        await harness.telegram.say("/stop")
        assert [one.text for one in await harness.wait_for_messages(1)] == ["Nothing is running here."]
        await harness.telegram.say("/mine now")
        assert [one.text for one in await harness.wait_for_messages(2)][1:] == ["the plugin heard now"]
        given = gateway_app.app.commands.parse("/sethome", "platform")
        assert isinstance(given, GivenCommand)
        assert (given.command.owner, given.command.is_for_admins) == ("", True)
        extensions = gateway_app.app.extensions
        assert extensions is not None
        problems = [problem for key, problem in extensions.problems() if key == "grabber"]
    refused = {"stop", "sethome", "approve", "busy", "export", "bg"}
    assert len(problems) == len(refused)
    assert all(any(f"cannot answer to /{word}: the built-in" in one for one in problems) for word in refused)


async def nothing(_: Chat, __: str) -> Outcome:
    return None


@pytest.mark.clause("E-10")
async def test_every_word_that_a_chat_knows_is_reserved_before_plugins_register(harness: Harness) -> None:
    async with harness.serve() as gateway_app:
        known = [word for one in gateway_app.app.commands.visible("platform") for word in one.words]
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


async def test_a_command_of_an_engine_reaches_the_engine_of_its_chat(harness: Harness) -> None:
    write_plugin(harness.home / "plugins" / "recorder", WHO)
    harness.config["plugins"] = {"enabled": ["recorder"]}
    harness.config["context"] = {"engine": "recorder"}
    harness.config["gateway"]["platforms"]["telegram"]["allowed_users"] = ["1001", "1002"]
    harness.model.say("Hello.")
    async with harness.serve():
        await harness.telegram.say("hi")
        await harness.wait_for_messages(1)
        for user in ("1001", "1002"):
            await harness.telegram.say("/who tea", user=user)
        first = (await harness.wait_for_messages(2))[1].text
        second = (await harness.wait_for_messages(1, user="1002"))[0].text
        assert first == f"{await harness.session_of('agent:main:telegram:dm:1001')} heard tea"
        assert second == f"{await harness.session_of('agent:main:telegram:dm:1002')} heard tea"
        assert first != second
