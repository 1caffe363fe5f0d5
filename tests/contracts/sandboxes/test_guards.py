"""Guards that somebody outside has taken away by replacing a file are put back while commands run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.sandboxes import guard_scenario
from tests.contracts.sandboxes.guard_scenario import KINDS, Sink, run
from tests.contracts.sandboxes.users import a_user, only_as_root

from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.chooser import SandboxChooser
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings

SCENARIO = str(guard_scenario.__file__)
PLACES = [".git/config", ".git/hooks", "new/.git/config"]
KILLED = sorted(set(KINDS) - {"inside", "bystander"})


@pytest.fixture
def view(cwd: Path, tmp_path: Path) -> SandboxPolicy:
    (cwd / ".git").mkdir()
    (cwd / ".git/config").write_text("[core]\n")
    return view_of(cwd, tmp_path / "home", TerminalSettings(), {})


def replace(file: Path) -> None:
    new = file.with_name("new")
    new.write_text("[core]\n")
    new.rename(file)


def came_of(who: str, word: str, folder: Path) -> dict[str, Any]:
    if who == "user":
        with a_user() as user:
            return json.loads(user.run(SCENARIO, str(user.folder / "project"), word))
    words = (sys.executable, SCENARIO, str(folder / "project"), word)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("who", ["self", pytest.param("user", marks=only_as_root)])
def test_whoever_had_a_file_at_hand_before_its_guard_was_put_back_cannot_write_it(
    tmp_path: Path, backend: Backend, who: str
) -> None:
    came = came_of(who, "guard", tmp_path)
    assert (came["before"], came["lost"], came["after"]) == ([], PLACES, [])
    assert (came["done"], came["failed"]) == (PLACES, [])
    assert (came["written"], came["hooks"]) == ([], [])
    assert came["stopped"] == [f"python3 hold.py {kind}" for kind in KILLED]
    assert came["wrote"] == ["bystander"]
    assert came["kept"] == "kept\n#bystander\n"


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
def test_without_that_they_all_write_it(tmp_path: Path, backend: Backend) -> None:
    came = came_of("self", "control", tmp_path)
    assert came["lost"] == came["after"] == PLACES
    in_hooks = {"folder", "descriptor", "bystander"}
    assert came["written"] == sorted(f"#{mark}" for mark in ({*KINDS} - in_hooks) | {"plain", "moved"})
    assert came["hooks"] == ["evil", "evil2", "new"]
    assert came["wrote"] == [*KINDS]


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_what_is_guarded_already_costs_nothing_more(
    cwd: Path, view: SandboxPolicy, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = (cwd / ".git/config",)
    async with Bubblewrap().open(view) as host:
        for _ in range(2):  # a guard that was put back can be lost again
            replace(*places)
            assert host.find_unguarded(places) == places
            assert (await host.guard(places)).done == places
            assert "Read-only" in await run(host, "echo evil >> .git/config")
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        assert (await host.guard(places)).done == places
        replace(*places)
        assert (await host.guard(places)).failed == ((places[0], "/nowhere/python: No such file or directory"),)


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_processes_go_on_and_those_that_were_stopped_stay_so(
    cwd: Path, view: SandboxPolicy, backend: Backend
) -> None:
    stopped = "bash -c 'kill -STOP $$; sleep 1000' & until grep -q '^State:.T' /proc/$!/status; do :; done"
    command = f"{stopped}; sleep 1000 & echo ready; read x; ps -o stat=,args= --ppid $$ | sort"
    async with Bubblewrap().open(view) as host:
        sink = Sink()
        started = host.start(SandboxCommand(command=command, has_input=True, is_kept=False), sink)
        await sink.wait_for("ready")
        replace(cwd / ".git/config")
        assert (await host.guard((cwd / ".git/config",))).stopped == ()
        started.write(b"\n")
        await started.wait()
    states = [line[0] for line in sink.text.splitlines() if line.endswith("sleep 1000")]
    assert states == ["S", "T"]


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_what_cannot_be_guarded_is_told(cwd: Path, view: SandboxPolicy, backend: Backend, tmp_path: Path) -> None:
    config, linked, missing = cwd / ".git/config", cwd / "linked", cwd / "missing"
    linked.symlink_to(config)
    async with Bubblewrap().open(view) as host:
        replace(config)
        os.link(config, cwd / "second")
        with config.open("a"):  # perhaps handed over to a command in a way that nobody can see
            came = await host.guard((config, linked, missing))
        assert dict(came.failed) == {
            config: "a process that could not be found has it open for writing",
            linked: "it is a link, or leads through one",
            missing: "No such file or directory",
        }
        assert (came.done, came.linked) == ((), (config,))
        assert (await host.guard((config,))).done == (config,)
    assert (await host.guard((config,))).failed == ((config, "the sandbox has ended"),)
    assert host.find_unguarded((config,)) == ()


@pytest.mark.parametrize("backend", ["landlock", "local"], indirect=True)
async def test_levels_without_mounts_say_so(cwd: Path, view: SandboxPolicy, settings: TerminalSettings) -> None:
    config = cwd / ".git/config"
    async with SandboxChooser(settings).sandbox.open(view) as host:
        assert (await host.guard((config,))).failed == ((config, "this level has no mounts"),)
        assert host.find_unguarded((config,)) == ()
