"""Which servers go into the sandbox, with which folder of their own."""

import asyncio
from pathlib import Path

import pytest

from talaria.core.clock import SystemClock
from talaria.core.errors import ToolFailed
from talaria.tools.mcp.sandboxing import ConfinedServer, ServerSandboxes
from talaria.tools.mcp.server_entries import SandboxNeeds, ServerEntry
from talaria.tools.sandbox.base import ProgramSandbox
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

COMMAND = ServerEntry(command="/bin/true")


def sandboxes(home: Path, **more: tuple[str, ...]) -> ServerSandboxes:
    return ServerSandboxes(TerminalSettings(), home, SystemClock(), **more)  # pyright: ignore[reportArgumentType]


def environment(server: ConfinedServer | None) -> dict[str, str]:
    """Of its process."""

    async def launched() -> dict[str, str]:
        assert server is not None
        async with server.launch(("/bin/true",), {"PATH": "/usr/bin"}) as found:
            return dict(found.launch.environment)

    return asyncio.run(launched())


@pytest.mark.parametrize(
    ("entry", "is_confined"),
    [
        (COMMAND, True),
        (ServerEntry(command="x", sandbox=True), True),
        (ServerEntry(command="x", sandbox=SandboxNeeds()), True),
        (ServerEntry(command="x", sandbox=False), False),
        (ServerEntry(url="http://127.0.0.1:9"), False),
    ],
)
def test_a_server_that_is_started_here_goes_into_the_sandbox(
    tmp_path: Path, entry: ServerEntry, is_confined: bool
) -> None:
    assert (sandboxes(tmp_path).confine("a", entry) is not None) == is_confined


def test_one_of_an_earlier_version_goes_in_when_the_person_says_so(tmp_path: Path) -> None:
    known = sandboxes(tmp_path, earlier=("a",))
    assert known.confine("a", COMMAND) is None
    assert known.confine("a", ServerEntry(command="x", sandbox=True)) is not None


def test_servers_of_one_name_in_different_projects_share_no_home(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    mine = sandboxes(tmp_path, configured=("notes", "a b", "a_b"))
    projects = sandboxes(tmp_path)
    entries = [ServerEntry(command="/bin/true", cwd=str(tmp_path / name)) for name in ("one", "other")]
    homes = [
        *(environment(mine.confine(name, entries[0]))["HOME"] for name in ("notes", "a b", "a_b")),
        *(environment(projects.confine("notes", entry))["HOME"] for entry in entries),
    ]
    assert homes[0] == str(tmp_path / "mcp/notes")
    assert len({*homes}) == 5
    assert {Path(home).parent for home in homes} == {tmp_path / "mcp"}


def test_a_project_does_not_name_what_is_private(tmp_path: Path) -> None:
    listed = ServerEntry(command="/bin/true", cwd=str(tmp_path), sandbox=SandboxNeeds(read=("/etc/shadow",)))
    named = ServerEntry(command="/bin/true", args=("/etc/shadow",), cwd=str(tmp_path))
    for entry in (listed, named):
        assert environment(sandboxes(tmp_path, configured=("a",)).confine("a", entry))["HOME"]
        with pytest.raises(ToolFailed, match=r"/etc/shadow is private; only an entry in your config\.yaml can name it"):
            environment(sandboxes(tmp_path).confine("a", entry))


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    entry = ServerEntry(command="/bin/true", cwd=str(tmp_path / "gone"))
    with pytest.raises(ToolFailed, match=r"there is no folder .*/gone to start it in"):
        environment(sandboxes(tmp_path).confine("a", entry))


class Unworkable(ServerSandboxes):
    @property
    def sandbox(self) -> ProgramSandbox:
        raise ToolFailed("no sandbox: the kernel has none")


def test_nothing_is_started_where_no_sandbox_works(tmp_path: Path) -> None:
    server = Unworkable(TerminalSettings(), tmp_path, SystemClock(), configured=["a"]).confine("a", COMMAND)
    with pytest.raises(
        ToolFailed, match=r"no sandbox works here .* set mcp_servers\.a\.sandbox to false to run it with all"
    ):
        environment(server)
