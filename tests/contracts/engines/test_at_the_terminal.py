"""What a context engine is told when the person at the terminal goes over to another conversation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talaria.app.settings import Settings
from talaria.cli.conversation import open_conversation
from talaria.cli.options import CliOptions
from talaria.config.load import decode
from talaria.core.errors import TalariaError
from talaria.runtime.session import ignore
from talaria.testing.servers.model_server import ModelServer

Install = Callable[..., Path]


class SilentInterface:
    """A terminal that nobody looks at."""

    person = None

    def say(self, text: str) -> None: ...

    def show_error(self, error: TalariaError) -> None:
        raise error

    def observer(self) -> Any:
        return ignore

    def show_report(self, report: Any) -> None: ...

    def on_switch(self, reason: Any) -> None: ...

    async def repaint(self, row: Any, entries: Any) -> bool:
        return False


@pytest.mark.clause("E-01")
@pytest.mark.parametrize(
    ("line", "moments"),
    [("/branch", ["end", "reset", "start", "carry"]), ("/new", ["end", "reset", "start"])],
    ids=["branch", "new"],
)
async def test_a_branch_carries_over_and_a_new_conversation_does_not(
    install: Install, home: Path, server: ModelServer, line: str, moments: list[str]
) -> None:
    install("recorder")
    config = {
        "model": {"default": "test-model", "base_url": server.base_url, "context_length": 32_000},
        "plugins": {"enabled": ["recorder"]},
        "context": {"engine": "recorder"},
    }
    settings = Settings(home, decode(config, home / "config.yaml"), {})
    async with open_conversation(settings, CliOptions(), SilentInterface()) as conversation:
        server.say("hello")
        await conversation.handle_line(conversation.parse("hi"))
        old = conversation.session
        (home / "hermes" / "calls.jsonl").unlink()
        await conversation.handle_line(conversation.parse(line))
        calls = [json.loads(one)[:3] for one in (home / "hermes" / "calls.jsonl").read_text().splitlines()]
        assert [what for what, _, _ in calls] == moments
        _, args, facts = calls[2]
        assert (args, facts["old_session_id"]) == ([conversation.session], old)
