"""A server in the sandbox: it works there, keeps what is its own, and people are told what it was refused."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx
from msgspec import structs
from tests.contracts.mcp.conftest import Odd, Open, Use, names
from tests.contracts.mcp.escapes import LEVELS, findings
from tests.contracts.sandboxes.test_levels import findings_of_a_user

from talaria.core.secret import Secret
from talaria.testing.manual_clock import ManualClock
from talaria.tools.mcp.sandboxing import Launched
from talaria.tools.mcp.server_entries import SandboxNeeds, ServerEntry
from talaria.tools.mcp.servers import Servers
from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.launching import START_S
from talaria.tools.sandbox.sandbox_settings import Backend

HOSTILE = Path(__file__).parents[2] / "security" / "hostile_mcp_server.py"
SANDBOXED = pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])


@pytest.fixture
def entry(folder: Path) -> ServerEntry:
    return ServerEntry(command=sys.executable, args=("-I", "-S", str(HOSTILE)), cwd=str(folder))


@SANDBOXED
async def test_the_reference_server_works_in_it(
    opened: Open, use: Use, everything: Path, folder: Path, backend: Backend
) -> None:
    needs = SandboxNeeds(read=(str(everything.parents[4]),))
    entry = ServerEntry(
        command="node", args=(str(everything), "stdio"), env={"WELL": Secret("deep")}, cwd=str(folder), sandbox=needs
    )
    async with opened(backend=backend, every=entry) as servers:
        assert servers.notices == ()
        assert (await use(servers.tools(), "mcp_every_echo", message="hi")).text == "Echo: hi"
        seen = json.loads((await use(servers.tools(), "mcp_every_get-env")).text)
    assert seen["WELL"] == "deep"


async def attack(use: Use, servers: Servers, **attempts: tuple[object, ...]) -> dict[str, str]:
    told = await use(servers.tools(), "mcp_evil_attack", attempts=json.dumps(attempts))
    return json.JSONDecoder().raw_decode(told.text)[0]


@SANDBOXED
async def test_it_keeps_a_home_of_its_own_between_starts(
    opened: Open, use: Use, entry: ServerEntry, home: Path, backend: Backend
) -> None:
    for before in ("", "kept"):
        async with opened(backend=backend, evil=entry) as servers:
            assert await attack(use, servers, kept=("keep", "kept"), home=("seen", "HOME")) == {
                "kept": before,
                "home": str(home / "mcp/evil"),
            }


@SANDBOXED
async def test_it_reads_and_writes_what_is_listed_and_the_folder_of_its_start_only_to_read(
    opened: Open, use: Use, entry: ServerEntry, tmp_path: Path, folder: Path, backend: Backend
) -> None:
    for name in ("read", "write", "nothing"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (folder / "file").write_text("here")
    needs = SandboxNeeds(read=("../read",), write=(str(tmp_path / "write"),))
    async with opened(backend=backend, evil=structs.replace(entry, sandbox=needs)) as servers:
        told = await attack(
            use,
            servers,
            **{f"read {name}": ("read", str(tmp_path / name / "file")) for name in ("read", "write", "nothing")},
            **{f"write {name}": ("write", str(tmp_path / name / "new")) for name in ("read", "write", "nothing")},
            here=("read", str(folder / "file")),
            change=("write", str(folder / "new")),
        )
    assert {name for name, outcome in told.items() if not outcome.startswith("refused")} == {
        "read read",
        "read write",
        "write write",
        "here",
    }
    assert (tmp_path / "write/new").read_text() == "was here"
    assert not (folder / "new").exists()


async def test_a_project_that_it_may_change_keeps_its_hooks(
    opened: Open, use: Use, entry: ServerEntry, folder: Path
) -> None:
    (folder / ".git/hooks").mkdir(parents=True)
    needs = SandboxNeeds(write=(".",))
    async with opened(backend="bubblewrap", evil=structs.replace(entry, sandbox=needs)) as servers:
        told = await attack(
            use,
            servers,
            hook=("write", str(folder / ".git/hooks/post-commit")),
            file=("write", str(folder / "notes.txt")),
        )
    assert told == {"hook": "refused: OSError", "file": "written"}


async def test_hosts_that_it_may_not_reach_are_named_once(opened: Open, use: Use, entry: ServerEntry) -> None:
    async with opened(backend="bubblewrap", evil=entry) as servers:
        attempts = json.dumps({"sink": ("tunnel", "sink.example", 443)})
        first, second = [await use(servers.tools(), "mcp_evil_attack", attempts=attempts) for _ in range(2)]
        assert servers.find_refused_hosts("evil") == ("sink.example",)
    assert first.text == (
        '{"sink": "refused: OSError"}\n[About evil: it tried to reach sink.example from the sandbox, which was '
        "refused: add to mcp_servers.evil.sandbox.network what it may reach, or set mcp_servers.evil.sandbox to false.]"
    )
    assert second.text == '{"sink": "refused: OSError"}'


@pytest.mark.parametrize("network", ["*", ("*.example", "127.0.0.1")])
async def test_private_addresses_stay_out_of_reach_whatever_it_lists(
    opened: Open, use: Use, entry: ServerEntry, network: tuple[str, ...] | str
) -> None:
    needs = SandboxNeeds(network=network)
    async with opened(backend="bubblewrap", evil=structs.replace(entry, sandbox=needs)) as servers:
        told = await use(servers.tools(), "mcp_evil_attack", attempts=json.dumps({"here": ("tunnel", "127.0.0.1", 9)}))
    assert told.text.startswith('{"here": "refused: OSError"}')
    assert "127.0.0.1 is not on the public internet: add it to web.allow_private" in told.text


async def test_a_server_that_fails_for_a_host_says_which(opened: Open, entry: ServerEntry) -> None:
    updating = structs.replace(entry, args=(*entry.args, "updates.example"))
    async with opened(backend="bubblewrap", evil=updating) as servers:
        assert servers.problem("evil") == (
            "ended with exit code 1: no update from updates.example: refused: OSError; it tried to reach "
            "updates.example from the sandbox, which was refused: add to mcp_servers.evil.sandbox.network what it may "
            "reach, or set mcp_servers.evil.sandbox to false"
        )


async def test_hosts_are_not_promised_where_the_sandbox_has_no_network(opened: Open, entry: ServerEntry) -> None:
    needs = SandboxNeeds(network=("api.example",))
    async with opened(backend="landlock", evil=structs.replace(entry, sandbox=needs)) as servers:
        problem = servers.problem("evil")
    assert problem.startswith("cannot start in the sandbox (mcp_servers.evil.sandbox): ")
    assert "the sandbox that works here (Landlock) has no network" in problem


@pytest.mark.parametrize("place", ["/", "home"])
async def test_a_folder_with_talarias_own_home_in_it_is_not_given_away(
    opened: Open, entry: ServerEntry, home: Path, place: str
) -> None:
    needs = SandboxNeeds(read=(str(home / place),))
    home.mkdir()
    (home / "home").mkdir()
    async with opened(backend="bubblewrap", evil=structs.replace(entry, sandbox=needs)) as servers:
        assert "cannot be given to it" in servers.problem("evil")
        assert names(servers) == []


async def test_a_server_with_faults_is_started_again_in_it(opened: Open, odd: Odd, use: Use, folder: Path) -> None:
    needs = SandboxNeeds(write=(str(folder),))
    clock = ManualClock(auto=True)
    async with opened(backend="bubblewrap", clock=clock, odd=odd("dies-once", sandbox=needs)) as servers:
        first = await use(servers.tools(), "mcp_odd_work")
        assert "ended" in first.text
        assert (await use(servers.tools(), "mcp_odd_work", a=1)).text == 'did {"a": 1}'


@SANDBOXED
async def test_nothing_of_this_blocks_the_event_loop(
    opened: Open, use: Use, entry: ServerEntry, backend: Backend
) -> None:
    with blockbuster_ctx("talaria.tools"):
        async with opened(backend=backend, evil=entry) as servers:
            assert (await attack(use, servers, name=("seen", "PATH")))["name"]


IN_ITS_PROJECT = {"write .git/commondir"}
"""What is missing when a server begins is not guarded in a folder that it may change."""


@SANDBOXED
async def test_no_escape_of_a_server_succeeds_at_the_claimed_level(tmp_path: Path, backend: Backend) -> None:
    found = await findings(backend, tmp_path)
    assert {one.name: one.detail for one in found if one.verdict(LEVELS[backend]) == "fail"}.keys() == IN_ITS_PROJECT


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("backend", ["bubblewrap", "landlock", "outside"])
def test_no_escape_of_a_server_of_a_user_succeeds_either(backend: str) -> None:
    found = findings_of_a_user(backend, "from tests.contracts.mcp.escapes import main; main()")
    if backend == "outside":
        assert len([name for name, (verdict, *_) in found.items() if verdict == "warn"]) > 25
    else:
        assert {name for name, (verdict, *_) in found.items() if verdict == "fail"} == IN_ITS_PROJECT


async def test_a_sandbox_that_does_not_start_is_not_waited_for(tmp_path: Path) -> None:
    view = SandboxPolicy(project=tmp_path / "gone", home=tmp_path)
    async with Bubblewrap().program(view, ("/bin/true",), "/") as launch:
        process = await asyncio.create_subprocess_exec(
            *launch.argv, pass_fds=launch.pass_fds, stderr=asyncio.subprocess.DEVNULL
        )
        proxy = EgressProxy((), (), ManualClock())
        async with asyncio.timeout(START_S / 2), Launched(launch, proxy, None).supervise(process.pid):
            assert await process.wait() != 0
