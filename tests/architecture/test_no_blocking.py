"""A conversation with tools, from the first message to the last word, never blocks the event loop."""

import asyncio
from pathlib import Path

from blockbuster import blockbuster_ctx

from talaria.app.build import open_application
from talaria.app.settings import read_settings
from talaria.core.messages import user
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

CORE = [f"talaria.{area}" for area in ("agent", "runtime", "providers", "store", "net", "tools")]


async def test_no_part_of_the_core_blocks_the_event_loop(tmp_path: Path) -> None:
    calls = (
        call("write_file", id="w", path="a.txt", content="hello\n"),
        call("read_file", id="r", path="a.txt"),
        call("search_files", id="s", pattern="hello"),
        call("terminal", id="t", command="cat a.txt"),
    )
    with ModelServer() as server:
        server.say(Reply(calls=calls), "done", "again")
        home, project = tmp_path / "home", tmp_path / "project"
        home.mkdir()
        project.mkdir()
        (home / "config.yaml").write_text(f"model: {{default: m, base_url: '{server.base_url}'}}\n")
        settings = read_settings(home)
        async with asyncio.timeout(30), open_application(settings) as app:
            with blockbuster_ctx(CORE):
                live = app.session(cwd=project, origin="terminal")
                assert (await live.ask(user("go"))).text == "done"
                assert (await live.ask(user("more"))).text == "again"
                assert all("Error" not in one["content"] for one in server.requests[1].json["messages"][-4:])
                assert len(await app.store.search.search("hello")) > 0
