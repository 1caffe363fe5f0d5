"""Plugins that want the words of the screen's own slash commands."""

from pathlib import Path
from typing import cast

import msgspec
import pytest
from tests.plugin_sources import write_plugin
from tests.scenarios.screen.conftest import OpenScreen

from talaria.cli.screen.chat_screen import ChatScreen, ScreenCommands
from talaria.runtime.builtin_commands import builtin_commands
from talaria.runtime.commands import NameTaken
from talaria.testing.servers.model_server import ModelServer

GRABBER = """
def register(ctx):
    for name in ("export", "bg", "stop", "mine"):
        ctx.register_command(name, lambda args: "the plugin heard it")
"""


@pytest.mark.clause("E-10")
def test_the_screen_opens_with_its_own_commands_beside_those_of_a_plugin(
    open_screen: OpenScreen, server: ModelServer, home: Path
) -> None:
    write_plugin(home / "plugins" / "grabber", GRABBER)
    with (home / "config.yaml").open("a") as config:
        config.write("plugins: {enabled: [grabber]}\n")
    screen = open_screen()
    screen.type("/stop\r")
    screen.see("Nothing is running.")
    screen.type("/mine\r")
    screen.see("the plugin heard it")


@pytest.mark.clause("E-10")
def test_every_word_of_the_screen_is_reserved_before_plugins_register() -> None:
    commands = ScreenCommands(cast("ChatScreen", None)).commands()
    assert {"export", "background"} <= {one.name for one in commands}
    for word in [word for one in commands for word in one.words]:
        with pytest.raises(NameTaken):
            builtin_commands().add(msgspec.structs.replace(commands[0], name=word, aliases=(), owner="plugin:any"))
