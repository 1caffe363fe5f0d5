"""What the person takes back is closed at once, also for what still runs."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.contracts.sandboxes.desktop import Ada, Desktop
from tests.waiting import until

from talaria.core.errors import BadInput
from talaria.core.ids import SessionId
from talaria.runtime.sandbox_report import describe_grant, describe_sandbox, revoke_grant
from talaria.store.base import Store
from talaria.store.permission_ports import Grant
from talaria.tools.sandbox_permissions import read_grant
from talaria.tools.workspaces import read_sandbox_state


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    folder = tmp_path / "person/beside"
    folder.mkdir(parents=True)
    return folder


def lines(file: Path) -> int:
    return file.read_text().count("\n") if file.exists() else 0


async def test_what_is_taken_back_is_closed_for_what_runs(
    desktop: Desktop, store: Store, beside: Path, port: int
) -> None:
    work = desktop.folder / "work"
    tries = {
        f"write {beside}": f"echo x > {beside}/x",
        f"port {port}": f"curl -sf --noproxy '*' -m 5 http://127.0.0.1:{port}/ -o /tmp/a",
        "network 127.0.0.1": f"curl -sf --noproxy '' -m 5 http://127.0.0.1:{port}/ -o /tmp/b",
    }
    marks = {need: work / f"did{at}" for at, need in enumerate(tries)}
    loop = "; ".join(f"{one} 2>/tmp/err && echo >> {marks[need].name}" for need, one in tries.items())
    ada = Ada("session", "project", "always")
    command = f"while :; do {loop}; echo >> rounds; sleep 0.02; done"
    started = await desktop.run(command, ada, needs=[*tries], background=True)
    assert not started.is_error, started.text
    await until(lambda: all(mark.exists() for mark in marks.values()))
    grants = {grant.what: grant for grant in await store.grants.list()}
    assert grants.keys() == marks.keys()
    for need, mark in marks.items():
        taken = await revoke_grant(store.grants, grants[need].id[:8], "local")
        permission = read_grant(taken.what)
        assert permission is not None
        assert await desktop.workspaces.revoke(permission) == ()
        rounds = lines(work / "rounds")
        await until(lambda rounds=rounds: lines(work / "rounds") >= rounds + 2)  # what had begun has ended
        done, rounds = lines(mark), lines(work / "rounds")
        await until(lambda rounds=rounds: lines(work / "rounds") >= rounds + 5)
        assert lines(mark) == done, need
    assert not await store.grants.list()


async def test_a_folder_is_closed_although_files_in_it_are_open_now_and_then(
    desktop: Desktop, store: Store, beside: Path
) -> None:
    held = beside / "held"
    await desktop.run("while :; do sleep 0.1 > ../person/beside/held; sleep 0.02; done", None, background=True)
    for _ in range(4):
        await desktop.run("true", Ada("session"), needs=[f"write {beside}"])
        await until(held.exists)
        (grant,) = await store.grants.list()
        permission = read_grant((await revoke_grant(store.grants, grant.id, "local")).what)
        assert permission is not None
        assert await desktop.workspaces.revoke(permission) == ()
        held.unlink()
        await desktop.run(f"touch {beside}/later", None)
        assert not [*beside.iterdir()]


async def test_a_link_is_closed_when_its_permission_is_taken_back(desktop: Desktop, store: Store) -> None:
    serve = "python3 -m http.server 8123 --bind 127.0.0.1"
    await desktop.run(serve, Ada("session"), needs=["publish 8123"], background=True)
    session = SessionId("s1")

    def published() -> object:
        return read_sandbox_state(
            desktop.workspaces, desktop.folder / "home", session, desktop.folder / "work"
        ).published

    assert await asyncio.to_thread(published)
    (grant,) = await store.grants.list()
    permission = read_grant((await revoke_grant(store.grants, grant.id, None)).what)
    assert permission is not None
    await desktop.workspaces.revoke(permission)
    assert not await asyncio.to_thread(published)


async def test_everyone_sees_and_takes_back_their_own(desktop: Desktop, store: Store, beside: Path) -> None:
    work = desktop.folder / "work"
    await desktop.run("true", Ada("project"), needs=[f"write {beside}"], asker="telegram:1")
    await desktop.run("true", Ada("session"), needs=["network pypi.org"], asker="telegram:2")
    await desktop.run(f"curl -m 5 --noproxy '' http://example.net/; touch {desktop.folder}/person/x", Ada("no"))
    session = SessionId("s1")
    state = await asyncio.to_thread(
        lambda: read_sandbox_state(desktop.workspaces, desktop.folder / "home", session, work)
    )

    async def told(person: str | None) -> str:
        told = await describe_sandbox(state, store.grants, session, 0.0, person, is_whole=False)
        return told.replace("~/", f"{desktop.folder}/person/")

    everything, first, second = await told(None), await told("telegram:1"), await told("telegram:2")
    assert "by telegram:1" in everything
    assert "by telegram:2" in everything
    assert (f"everything in {beside}" in first, "pypi.org" in first) == (True, False)
    assert (f"everything in {beside}" in second, "pypi.org and files.pythonhosted.org" in second) == (False, True)
    assert "Recently blocked: example.net:80" in everything
    assert f"Probably blocked: {desktop.folder}/person/x" in everything
    theirs = next(grant for grant in await store.grants.list() if grant.person == "telegram:1")
    with pytest.raises(BadInput, match="No permission of yours"):
        await revoke_grant(store.grants, theirs.id, "telegram:2")
    assert describe_grant(await revoke_grant(store.grants, theirs.id, None)).startswith("read, change and delete")


@pytest.mark.parametrize("kind", ["port", "socket"])
async def test_what_is_taken_back_while_it_is_being_opened_is_closed(
    desktop: Desktop, store: Store, beside: Path, port: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(beside / "service"))
        service.listen()
        what = str(port) if kind == "port" else str(beside / "service")
        await desktop.run("true", Ada("project"), needs=[f"{kind} {what}"])
        (grant,) = await store.grants.list()
        permission = read_grant(grant.what)
        assert permission is not None
        list_valid = store.grants.list_valid
        looks, revokes_at = 0, -1
        revoking: list[asyncio.Task[tuple[str, ...]]] = []

        async def look(asker: str, session: SessionId) -> Sequence[Grant]:
            nonlocal looks
            looks += 1
            found = await list_valid(asker, session)
            if looks == revokes_at:
                await store.grants.revoke(grant.id)
                revoking.append(asyncio.create_task(desktop.workspaces.revoke(permission)))
            return found

        monkeypatch.setattr(store.grants, "list_valid", look)
        await desktop.run("true", None)
        await desktop.workspaces.close(SessionId("s1"))
        looks, revokes_at = 0, looks
        await desktop.run("true", None)  # the last time that it looks, the grant is there
        assert len(revoking) == 1
        await asyncio.gather(*revoking)
        workspace = desktop.workspaces.find(SessionId("s1"))
        assert workspace is not None
        assert workspace.ports is not None
        assert [*workspace.ports.open_inwards, *workspace.ports.open_sockets] == []


async def test_what_once_has_opened_is_closed_when_its_command_has_ended(desktop: Desktop, beside: Path) -> None:
    work = desktop.folder / "work"
    loop = f"while :; do touch {beside}/x 2>/dev/null && echo >> did; echo >> rounds; sleep 0.02; done"
    await desktop.run(loop, None, background=True)
    await desktop.run("until [ -e did ]; do sleep 0.02; done", Ada("once"), needs=[f"write {beside}"])
    rounds = lines(work / "rounds")
    await until(lambda: lines(work / "rounds") >= rounds + 2)  # what had begun has ended
    done, rounds = lines(work / "did"), lines(work / "rounds")
    await until(lambda: lines(work / "rounds") >= rounds + 5)
    assert lines(work / "did") == done
