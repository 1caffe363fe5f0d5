"""Output that is too long for the model is kept in files, within limits that the settings give."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from talaria.app.build import open_application
from talaria.app.settings import Settings
from talaria.config.schema import Config, ModelConfig
from talaria.core.ids import SessionId, new_call_id
from talaria.core.messages import ToolCall
from talaria.runtime.session import LiveSession
from talaria.runtime.transcript import Transcript
from talaria.testing.servers.model_server import ModelServer
from talaria.tools.sandbox.sandbox_settings import LimitSettings, TerminalSettings


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


async def print_bytes(live: LiveSession, count: int) -> str:
    arguments = json.dumps({"command": f"head -c {count} /dev/zero | tr '\\0' x"})
    return (await live.services.executor(Transcript()).call(ToolCall(new_call_id(), "terminal", arguments))).text


def kept(home: Path) -> list[int]:
    return sorted(file.stat().st_size for file in (home / "spill").rglob("*.txt"))


async def test_output_beyond_the_limits_is_shown_in_part_and_not_kept(tmp_path: Path, server: ModelServer) -> None:
    limits = LimitSettings(kept_output="200K", kept_output_total="300K")
    config = Config(
        model=ModelConfig(provider="custom", default="m", base_url=server.base_url),
        terminal=TerminalSettings(limits=limits),
    )
    home, project = tmp_path / "home", tmp_path / "project"
    project.mkdir()
    async with open_application(Settings(home, config, {}), kind="test") as app:
        one, other = (app.session(id=SessionId(id), cwd=project, origin="terminal") for id in ("one", "other"))
        assert "all 150,000 are in" in await print_bytes(one, 150_000)
        cut = await print_bytes(one, 150_000)
        assert re.search("the first 54,800 of 150,000 are in .*, the rest is not kept: the kept output of this", cut)
        assert "of this session has reached 200 KiB (terminal.limits.kept_output) …]" in cut
        assert kept(home) == [54_800, 150_000]
        refused = await print_bytes(one, 150_000)
        assert "they could not be kept: the kept output of this session has reached 200 KiB" in refused
        assert refused.count("x" * 16_000) == 2
        await print_bytes(other, 150_000)
        assert sum(kept(home)) == 300 << 10
        refused = await print_bytes(other, 150_000)
        assert "the kept output of all sessions has reached 300 KiB (terminal.limits.kept_output_total)" in refused
        assert sum(kept(home)) == 300 << 10
