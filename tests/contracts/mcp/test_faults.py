"""Servers that hang, die, flood, change or lie: each call ends with one sentence, and nobody else is hurt."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx
from tests.contracts.mcp.conftest import Odd, Open, Use, names, received
from tests.waiting import until

from talaria.core.secret import Secret
from talaria.testing.manual_clock import ManualClock
from talaria.tools.mcp.sandboxing import ServerSandboxes
from talaria.tools.mcp.server_entries import ServerEntry, ToolFilter
from talaria.tools.mcp.servers import open_servers
from talaria.tools.person import Proposal
from talaria.tools.sandbox.sandbox_settings import TerminalSettings


async def test_call_that_hangs_ends_in_its_time_and_the_server_is_told(
    opened: Open, use: Use, odd: Odd, clock: ManualClock, folder: Path
) -> None:
    async with opened(odd=odd("silent", timeout=5)) as servers:
        call = asyncio.ensure_future(use(servers.tools(), "mcp_odd_work"))
        await until(lambda: received(folder)[-1]["method"] == "tools/call")
        clock.advance(5)
        result = await call
        await until(lambda: received(folder)[-1]["method"] == "notifications/cancelled")
    asked, cancelled = received(folder)[-2:]
    assert cancelled["params"]["requestId"] == asked["id"]
    assert result.is_error
    assert result.text == (
        "Error: The MCP server odd did not answer within 5 seconds and was told to stop; check what it did."
    )


async def test_cancelled_call_is_left_at_once_and_the_server_is_told(
    opened: Open, use: Use, odd: Odd, folder: Path
) -> None:
    async with opened(odd=odd("silent")) as servers:
        call = asyncio.ensure_future(use(servers.tools(), "mcp_odd_work"))
        await until(lambda: received(folder)[-1]["method"] == "tools/call")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: received(folder)[-1]["method"] == "notifications/cancelled")


async def test_hanging_server_does_not_hold_up_another(opened: Open, use: Use, odd: Odd, folder: Path) -> None:
    async with opened(hung=odd("silent"), fine=odd("fine")) as servers:
        hung = asyncio.ensure_future(use(servers.tools(), "mcp_hung_work"))
        await until(lambda: any(message["method"] == "tools/call" for message in received(folder)))
        assert (await use(servers.tools(), "mcp_fine_work", a=1)).text == 'did {"a": 1}'
        assert not hung.done()
        hung.cancel()


async def test_server_that_dies_in_a_call_leaves_one_sentence(opened: Open, use: Use, odd: Odd) -> None:
    async with opened(odd=odd("dies-in-call")) as servers:
        result = await use(servers.tools(), "mcp_odd_work")
    assert result.is_error
    assert result.text.startswith("Error: The MCP server odd ended")
    assert result.text.endswith("during this call; whether it took effect is unknown.")


async def test_next_call_waits_for_the_server_to_come_back(
    opened: Open, use: Use, odd: Odd, clock: ManualClock, folder: Path
) -> None:
    async with opened(odd=odd("dies-once")) as servers:
        tools = servers.tools()
        assert (await use(tools, "mcp_odd_work")).is_error
        again = asyncio.ensure_future(use(tools, "mcp_odd_work", n=2))
        await until(lambda: clock.slept == [1.0])
        assert not again.done()
        clock.advance(1)
        assert (await again).text == 'did {"n": 2}'
    assert (folder / "starts").read_text() == "xx"


async def test_pauses_between_attempts_grow(opened: Open, odd: Odd, clock: ManualClock, folder: Path) -> None:
    async with opened(odd=odd("crashing")) as servers:
        assert servers.notices == (
            "The MCP server odd ended with exit code 1: no such table: wells. Its tools are missing here.",
        )
        for pause in (1, 2, 4, 8, 16, 32, 60, 60):
            await until(lambda pause=pause: clock.slept and clock.slept[-1] == pause)
            clock.slept.clear()
            clock.advance(pause)


async def test_call_to_a_server_that_stays_away_says_so(
    opened: Open, use: Use, odd: Odd, clock: ManualClock, folder: Path
) -> None:
    async with opened(odd=odd("fickle", timeout=30)):
        pass
    (folder / "down").touch()
    async with opened(odd=odd("fickle", timeout=30)) as servers:
        call = asyncio.ensure_future(use(servers.tools(), "mcp_odd_work"))
        await until(lambda: clock.slept)
        clock.advance(30)
        result = await call
    assert result.text == (
        "Error: The MCP server odd is away (it ended with exit code 6) and did not come back within 30 seconds; "
        "nothing was done."
    )


async def test_call_does_not_wait_for_a_program_that_ends_whenever_it_is_started(
    opened: Open, use: Use, odd: Odd, clock: ManualClock, folder: Path
) -> None:
    async with opened(odd=odd("fickle")):
        pass
    (folder / "down").touch()
    async with opened(odd=odd("fickle")) as servers:
        call = asyncio.ensure_future(use(servers.tools(), "mcp_odd_work"))
        for pause in (1, 2):
            await until(lambda pause=pause: clock.slept and clock.slept[-1] == pause)
            clock.slept.clear()
            clock.advance(pause)
        result = await call
    assert result.text == "Error: The MCP server odd ended with exit code 6; nothing was done."


async def test_tools_of_a_server_that_is_away_are_known_from_last_time(
    opened: Open, use: Use, odd: Odd, clock: ManualClock, folder: Path
) -> None:
    async with opened(odd=odd("fickle")) as servers:
        before = names(servers)
    (folder / "down").touch()
    async with opened(odd=odd("fickle")) as servers:
        assert names(servers) == before == ["mcp_odd_work"]
        call = asyncio.ensure_future(use(servers.tools(), "mcp_odd_work"))
        await until(lambda: clock.slept)
        (folder / "down").unlink()
        clock.advance(1)
        assert (await call).text == "did {}"


async def test_message_without_end_is_cut_off(opened: Open, use: Use, odd: Odd) -> None:
    async with opened(odd=odd("huge-line")) as servers:
        result = await use(servers.tools(), "mcp_odd_work")
    assert "sent a message longer than 8 MB during this call" in result.text


async def test_long_answer_is_capped_and_kept(opened: Open, use: Use, odd: Odd, tmp_path: Path) -> None:
    async with opened(odd=odd("huge-answer")) as servers:
        result = await use(servers.tools(), "mcp_odd_work")
    assert len(result.text) < 40_000
    assert "bytes left out" in result.text
    assert [file.stat().st_size for file in (tmp_path / "spill").iterdir()] == [300_000]


async def test_noise_does_not_drown_the_answer(opened: Open, use: Use, odd: Odd) -> None:
    async with opened(odd=odd("noise")) as servers:
        assert (await use(servers.tools(), "mcp_odd_work")).text == "still here"


async def test_changed_tools_are_for_the_next_session(opened: Open, use: Use, odd: Odd, clock: ManualClock) -> None:
    async with opened(odd=odd("changing")) as servers:
        mine = servers.tools()
        assert (await use(mine, "mcp_odd_work")).text == "changed"
        await until(lambda: clock.slept)
        clock.advance(1)
        await until(lambda: names(servers) == ["mcp_odd_new"])
        assert [tool.spec.name for tool in mine] == ["mcp_odd_work"]
    async with opened(odd=odd("changing")) as servers:
        assert names(servers) == ["mcp_odd_new"]


async def test_one_bad_schema_costs_one_tool(opened: Open, use: Use, odd: Odd) -> None:
    async with opened(odd=odd("bad-schemas"), fine=odd("fine")) as servers:
        assert names(servers) == ["mcp_odd_good", "mcp_fine_work"]
        assert servers.notices == (
            (
                "Some tools of the MCP server odd cannot be used: the schema of list is not an object; "
                "the schema of string does not describe an object; a tool is not an object."
            ),
        )
        assert not (await use(servers.tools(), "mcp_odd_good")).is_error


async def test_every_tool_has_a_name_of_its_own(opened: Open, use: Use, odd: Odd) -> None:
    async with opened(odd=odd("duplicates")) as servers:
        twin, plain, marked = servers.tools()
        assert (twin.spec.name, twin.spec.description) == ("mcp_odd_twin", "the first")
        assert plain.spec.name == "mcp_odd_a_b"
        assert marked.spec.name.startswith("mcp_odd_a_b_")
        assert "two tools are called twin" in servers.notices[0]
        assert not (await use(servers.tools(), marked.spec.name)).is_error


async def test_first_connection_is_waited_for_once(opened: Open, odd: Odd, clock: ManualClock, folder: Path) -> None:
    entering = opened(odd=odd("mute", connect_timeout=7))
    opening = asyncio.ensure_future(entering.__aenter__())
    await until((folder / "starts").exists)
    assert not opening.done()
    clock.advance(7)
    servers = await opening
    assert servers.notices == ("The MCP server odd did not answer within 7 seconds. Its tools are missing here.",)
    await entering.__aexit__(None, None, None)

    async with opened(odd=odd("mute", connect_timeout=7)) as servers:
        assert names(servers) == []
        assert servers.notices == (
            "The MCP server odd has not answered yet; its tools will be in the next conversation.",
        )


async def test_slow_server_brings_its_tools_to_the_next_session(
    opened: Open, odd: Odd, clock: ManualClock, folder: Path
) -> None:
    entering = opened(odd=odd("mute-at-first", connect_timeout=7))
    opening = asyncio.ensure_future(entering.__aenter__())
    await until((folder / "starts").exists)
    clock.advance(7)
    servers = await opening
    assert names(servers) == []
    await until(lambda: clock.slept)
    clock.advance(1)
    await until(lambda: servers.notices == ())
    assert names(servers) == ["mcp_odd_work"]
    await entering.__aexit__(None, None, None)


async def test_opening_that_is_cancelled_leaves_nothing(opened: Open, odd: Odd, folder: Path) -> None:
    entering = opened(odd=odd("mute"))
    opening = asyncio.ensure_future(entering.__aenter__())
    await until((folder / "starts").exists)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    others = {task for task in asyncio.all_tasks() if "mcp" in task.get_name()}
    assert others == set()


async def test_wrong_command_is_named_at_once(opened: Open, odd: Odd) -> None:
    wrong = ServerEntry(command="no-such-command-anywhere")
    nowhere = ServerEntry(command=sys.executable, cwd="/no/such/folder")
    async with opened(wrong=wrong, nowhere=nowhere, fine=odd("fine")) as servers:
        assert servers.notices == (
            (
                "The MCP server wrong cannot start: there is no command 'no-such-command-anywhere'. "
                "Its tools are missing here."
            ),
            "The MCP server nowhere cannot start: No such file or directory. Its tools are missing here.",
        )
        assert names(servers) == ["mcp_fine_work"]


async def test_command_that_comes_back_is_found(
    opened: Open, use: Use, odd: Odd, clock: ManualClock, tmp_path: Path
) -> None:
    command = tmp_path / "python"
    async with opened(odd=ServerEntry(command=str(command), args=odd("fine").args)) as servers:
        await until(lambda: clock.slept == [60.0])
        command.symlink_to(sys.executable)
        clock.advance(60)
        await until(lambda: servers.notices == ())
        assert (await use(servers.tools(), "mcp_odd_work")).text == "did {}"


async def test_server_that_cannot_start_any_more_answers_calls_at_once(
    opened: Open, use: Use, odd: Odd, home: Path, clock: ManualClock, tmp_path: Path
) -> None:
    command = tmp_path / "python"
    command.symlink_to(sys.executable)
    entry = ServerEntry(command=str(command), args=odd("fine").args)
    async with opened(odd=entry):
        pass
    command.unlink()
    async with opened(odd=entry) as servers:
        result = await use(servers.tools(), "mcp_odd_work")
    assert (
        result.text
        == f"Error: The MCP server odd cannot start: there is no command {str(command)!r}; nothing was done."
    )


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("failing", "Error: the well is dry"),
        ("refusing", "Error: there is no such well"),
        ("nonsense", "Error: The server's answer is not valid MCP"),
    ],
)
async def test_what_goes_wrong_in_a_server_is_an_error_for_the_model(
    opened: Open, use: Use, odd: Odd, behaviour: str, text: str
) -> None:
    async with opened(odd=odd(behaviour)) as servers:
        result = await use(servers.tools(), "mcp_odd_work")
    assert result.is_error
    assert result.text.startswith(text)


async def test_structured_content_alone_is_shown_as_json(opened: Open, use: Use, odd: Odd) -> None:
    async with opened(odd=odd("structured")) as servers:
        assert (await use(servers.tools(), "mcp_odd_work")).text == '{"wells":3}'


async def test_patterns_of_a_server_are_not_run_here(opened: Open, use: Use, odd: Odd) -> None:
    async with opened(odd=odd("regex")) as servers:
        result = await use(servers.tools(), "mcp_odd_slow")
    assert result.text.startswith("done")


async def test_listing_without_end_is_cut_off(opened: Open, odd: Odd) -> None:
    async with opened(odd=odd("endless-pages")) as servers:
        assert len(servers.tools()) == 100


async def test_server_that_leaves_at_a_word_it_does_not_know_is_met_in_the_old_way(
    opened: Open, use: Use, odd: Odd
) -> None:
    async with opened(odd=odd("leaves-at-discover")) as servers:
        assert (await use(servers.tools(), "mcp_odd_work")).text == "did {}"


async def test_effects_follow_what_the_server_says(opened: Open, odd: Odd, tmp_path: Path) -> None:
    async with opened(odd=odd("hints")) as servers:
        found = {tool.spec.name: tool.prepare('{"a": 1}', None) for tool in servers.tools()}  # pyright: ignore[reportArgumentType]
        kinds = {name: invocation.effect.kind for name, invocation in found.items()}
        assert [tool.after_crash for tool in servers.tools()] == ["once"] * 4
    assert kinds == {
        "mcp_odd_reads": "reads",
        "mcp_odd_adds": "independent",
        "mcp_odd_plain": "exclusive",
        "mcp_odd_odd": "exclusive",
    }
    given = Proposal("Let the MCP server odd run reads?", '{\n  "a": 1\n}', "arguments as JSON")
    assert found["mcp_odd_reads"].question == given
    assert [found[name].claim.sends for name in ("mcp_odd_reads", "mcp_odd_plain")] == [False, True]
    given = Proposal("Let the MCP server odd run plain?", '{\n  "a": 1\n}', "arguments as JSON")
    assert found["mcp_odd_plain"].question == given


async def test_include_and_exclude_choose_among_the_tools(opened: Open, odd: Odd) -> None:
    async with opened(
        one=odd("hints", tools=ToolFilter(include=("reads", "pl*"))),
        two=odd("hints", tools=ToolFilter(exclude=("*d*",))),
    ) as servers:
        assert names(servers) == ["mcp_one_reads", "mcp_one_plain", "mcp_two_plain"]


async def test_disabled_server_is_not_started(opened: Open, odd: Odd, folder: Path) -> None:
    async with opened(odd=odd("fine", enabled=False)) as servers:
        assert names(servers) == []
    assert not (folder / "starts").exists()


async def test_secrets_of_an_entry_are_told_to_nobody(opened: Open, use: Use, odd: Odd, home: Path) -> None:
    entry = odd("secret", env={"TOKEN": Secret("tok-12345")})
    async with opened(odd=entry) as servers:
        result = await use(servers.tools(), "mcp_odd_work")
        await until(lambda: servers.notices)
        said = (result.text, *servers.notices)
    assert "cannot log in with •••" in said[1]
    assert "tok-12345" not in "".join(said)
    assert b"tok-12345" not in b"".join(file.read_bytes() for file in home.rglob("*.json"))


async def test_damaged_cache_is_as_none(opened: Open, odd: Odd, home: Path) -> None:
    async with opened(odd=odd("fine")):
        (kept,) = home.rglob("*.json")
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.write_bytes(b'{"offers": [{"na')
    async with opened(odd=odd("fine")) as servers:
        assert names(servers) == ["mcp_odd_work"]


async def test_cache_of_another_entry_is_not_taken(opened: Open, odd: Odd) -> None:
    async with opened(odd=odd("fine")):
        pass
    async with opened(odd=odd("hints")) as servers:
        assert len(servers.tools()) == 4


async def test_home_that_cannot_be_written_costs_only_the_cache(odd: Odd, tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"
    sandboxes = ServerSandboxes(TerminalSettings(), home, clock, earlier=["odd"])
    async with open_servers({"odd": odd("fine")}, home, clock, {}, sandboxes) as servers:
        assert names(servers) == ["mcp_odd_work"]


async def test_nothing_of_this_blocks_the_event_loop(
    opened: Open, use: Use, odd: Odd, clock: ManualClock, folder: Path
) -> None:
    with blockbuster_ctx("talaria.tools"):
        async with opened(odd=odd("changing"), gone=ServerEntry(url="http://127.0.0.1:9/mcp")) as servers:
            assert (await use(servers.tools(), "mcp_odd_work")).text == "changed"
            await until(lambda: 1.0 in clock.slept)
            clock.advance(1)
            await until(lambda: names(servers) == ["mcp_odd_new"])


async def test_missing_package_is_said_with_the_way_out(
    opened: Open, odd: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [name for name in sys.modules if name.startswith("mcp.") or name == "talaria.tools.mcp.wire"]:
        monkeypatch.delitem(sys.modules, name)
    async with opened(odd=odd("fine")) as servers:
        (notice,) = servers.notices
    assert "-m pip install 'mcp>=2.3,<3'" in notice


async def test_all_arguments_are_in_the_question(opened: Open, odd: Odd) -> None:
    arguments = json.dumps({"a": "x" * 5_000 + "and then the rest"})
    async with opened(odd=odd("hints")) as servers:
        (plain,) = [tool for tool in servers.tools() if tool.spec.name == "mcp_odd_plain"]
        question = plain.prepare(arguments, None).question  # pyright: ignore[reportArgumentType]
    assert isinstance(question, Proposal)
    assert json.loads(question.content or "") == json.loads(arguments)


async def test_the_question_shows_the_arguments_that_the_server_gets(opened: Open, odd: Odd) -> None:
    """Of a name that is given twice the last one counts: it is the only one to be seen."""
    async with opened(odd=odd("hints")) as servers:
        (plain,) = [tool for tool in servers.tools() if tool.spec.name == "mcp_odd_plain"]
        question = plain.prepare('{"to": "ann", "to": "eve"}', None).question  # pyright: ignore[reportArgumentType]
    assert isinstance(question, Proposal)
    assert question.content == '{\n  "to": "eve"\n}'
