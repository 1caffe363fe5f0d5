"""The escape matrix, run for real: without a sandbox, where all of it succeeds, and in two that are made by hand."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from talaria.cli.health.escapes.canaries import GUARDED, Canaries
from talaria.cli.health.escapes.probes import ATTEMPTS, METADATA, NEEDS, ProbeResult, judge
from talaria.tools.sandbox.base import Level, SandboxLimits
from talaria.tools.sandbox.host import landlock, seccomp
from talaria.tools.sandbox.resource_limits import enforce_limits

BWRAP = "/usr/bin/bwrap"
PYTHON = "/usr/bin/python3"
CAP_SYS_ADMIN = 1 << 21
LIMITS = SandboxLimits(processes=60, scratch_bytes=16 << 20, file_bytes=64 << 20)
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/passwd", "/etc/group", "/etc/gitconfig")
FOR_ROOT = {
    "read a file of another user",
    "trace the agent",
    "create a user namespace",
    "mount a file system",
    "have capabilities",
    "create a device",
    "open a disk or the memory",
    "type into the terminal",
    "change the mode of a device",
    "open a private key of the machine",
}
"""Who is not root, or is so in a container only, may not do this even without a sandbox."""
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not Path(PYTHON).exists(), reason="it needs Linux and the system's Python"
)


def wrapped(project: Path) -> tuple[str, ...]:
    """In bubblewrap, as the design has it."""
    own = str(project)
    guarded = [str(project / name) for name in GUARDED]
    return (
        *(BWRAP, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent"),
        *("--new-session", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--proc", "/proc", "--dev", "/dev"),
        *("--remount-ro", "/proc"),
        *(word for path in SYSTEM for word in ("--ro-bind-try", path, path)),
        *("--size", str(LIMITS.scratch_bytes), "--tmpfs", "/tmp", "--bind", own, own),
        *("--bind", f"{own}/.git", f"{own}/.git"),  # what is mounted cannot be moved away
        *(word for path in guarded for word in ("--ro-bind", path, path)),
        *("--chdir", own),
    )


class Trial:
    """One run of the intruder."""

    def __init__(self, place: Path) -> None:
        self.home, self.agent_home, self.project, self._scratch = (
            place / name for name in ("home", "agent", "project", "scratch")
        )
        for folder in (self.home, self.agent_home, self.project, self._scratch):
            folder.mkdir()

    def canaries(self) -> Canaries:
        return Canaries(project=self.project, home=self.home, agent_home=self.agent_home, limits=LIMITS)

    def findings(self, level: Level) -> dict[str, ProbeResult]:
        with self.canaries() as canaries:
            lines = self._run(level, canaries.arguments)
            return {finding.name: finding for finding in judge(lines, canaries)}

    def _run(self, level: Level, arguments: Sequence[str]) -> list[str]:
        reading, writing = os.pipe()
        filter = os.memfd_create("filter")
        os.write(filter, seccomp.always())
        os.lseek(filter, 0, os.SEEK_SET)
        before = (*wrapped(self.project), "--seccomp", str(filter)) if level == "strict" else ()
        with enforce_limits(LIMITS.processes) as limit:

            def shut_in() -> None:
                if level == "none":
                    return
                assert limit.join is not None
                limit.join(0)
                resource.setrlimit(resource.RLIMIT_FSIZE, (LIMITS.file_bytes, LIMITS.file_bytes))
                if level == "landlock":
                    landlock.restrict([*SYSTEM, "/proc"], [str(self.project), str(self._scratch)])
                    seccomp.install(seccomp.offline(landlock.abi(), seccomp.ALLOW))

            done = subprocess.run(
                [*before, PYTHON, "-I", "-S", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                cwd=self.project,
                env={"PATH": "/usr/bin:/bin", "TMPDIR": str(self._scratch)},
                pass_fds={"strict": (filter,), "none": (reading,)}.get(level, ()),
                preexec_fn=shut_in,
            )
        for descriptor in (reading, writing, filter):
            os.close(descriptor)
        return done.stdout.splitlines()


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def failed(findings: dict[str, ProbeResult], level: Level) -> dict[str, str]:
    return {name: found.detail for name, found in findings.items() if found.verdict(level) == "fail"}


def _is_truly_root() -> bool:
    held = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    return os.getuid() == 0 and held is not None and bool(int(held[1], 16) & CAP_SYS_ADMIN)


BY_THE_TOOL_HOST = {"outlive the command", "write .git/commondir", *(attempt.name for attempt in METADATA)}
"""What it prevents, which is not there in these trials."""


def test_without_a_sandbox_all_of_it_succeeds(trial: Trial) -> None:
    findings = trial.findings("none")
    expected = set(findings) - (set() if _is_truly_root() else FOR_ROOT)
    assert {
        name: found.detail for name, found in findings.items() if name in expected and not found.has_succeeded
    } == {}
    assert all(
        findings[attempt.name].is_escape for attempt in ATTEMPTS if attempt.name in expected and attempt not in NEEDS
    )
    assert failed(findings, "none") == {}


@pytest.mark.skipif(landlock.abi() < 6, reason="Landlock is too old here for all that the level claims")
def test_landlock_holds_what_is_claimed_for_it(trial: Trial) -> None:
    findings = trial.findings("landlock")
    assert failed(findings, "landlock").keys() <= BY_THE_TOOL_HOST
    assert {name for name, found in findings.items() if found.verdict("landlock") == "warn"} == {
        *(f"write {name}" for name in GUARDED),
        "move guarded files away",
        "fill the temporary folder",
        "reach its own server",
    }


def _has_bwrap() -> bool:
    trying = (BWRAP, "--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/", "true")
    return Path(BWRAP).exists() and subprocess.run(trying, check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not _has_bwrap(), reason="bubblewrap does not work here")
def test_bubblewrap_holds_what_is_claimed_for_it(trial: Trial) -> None:
    findings = trial.findings("strict")
    assert failed(findings, "strict").keys() <= BY_THE_TOOL_HOST
    assert {name for name, found in findings.items() if found.verdict("strict") == "warn"} == set()


@pytest.mark.parametrize("own", [[], [".ssh", "id_own"]])
def test_nothing_is_left_of_the_canaries(trial: Trial, own: list[str]) -> None:
    if own:
        (trial.home / ".ssh").mkdir()
        (trial.home / ".ssh/id_own").write_text("own")
    with trial.canaries():
        assert len([*(trial.home / ".ssh").iterdir()]) > 1
        assert [*trial.agent_home.iterdir()]
    assert [path.name for path in trial.home.rglob("*")] == own
    assert [*trial.agent_home.iterdir()] == []


@pytest.fixture
def canaries(trial: Trial) -> Iterator[Canaries]:
    with trial.canaries() as planted:
        yield planted


def told(canaries: Canaries) -> dict[str, list[str]]:
    """What each attempt is told."""
    return {name: facts for name, _, *facts in json.loads(Path(canaries.arguments[1]).read_text())}


def line(name: str, *, succeeded: bool, detail: str = "") -> str:
    return json.dumps({"name": name, "succeeded": succeeded, "detail": detail})


def judged(canaries: Canaries, name: str, *lines: str) -> ProbeResult:
    (found,) = (finding for finding in judge(lines, canaries) if finding.name == name)
    return found


def test_silence_proves_nothing(canaries: Canaries) -> None:
    findings = judge(["", "no JSON", '{"name": "use git"}'], canaries)
    assert {finding.name for finding in findings if finding.verdict("strict") == "pass"} == set()
    assert {finding.name for finding in findings if finding.has_succeeded} == set()


def test_what_was_not_tried_does_not_pass(canaries: Canaries) -> None:
    missing = '{"name": "use gcc", "succeeded": null, "detail": "gcc is not installed"}'
    found = judged(canaries, "use gcc", missing)
    assert (found.verdict("strict"), found.detail, found.is_escape) == ("skip", "gcc is not installed", False)
    name = "write the policy"
    path, mark = told(canaries)[name]
    Path(path).write_text(mark)
    assert judged(canaries, name, missing.replace("use gcc", name)).verdict("strict") == "fail"


@pytest.mark.parametrize("name", ["read the secret store", "write the policy", "send a datagram", "kill the agent"])
def test_word_of_the_intruder_does_not_count_where_something_shows_it(canaries: Canaries, name: str) -> None:
    found = judged(canaries, name, line(name, succeeded=True, detail="I did it"))
    assert (found.has_succeeded, found.is_escape, found.verdict("strict")) == (False, False, "pass")
    assert found.detail == "I did it (without effect outside)"


def test_mark_counts_whatever_the_intruder_says(canaries: Canaries) -> None:
    name = "write the policy"
    path, mark = told(canaries)[name]
    with Path(path).open("a") as file:
        file.write(mark)
    assert judged(canaries, name).verdict("strict") == "fail"
    assert judged(canaries, name, line(name, succeeded=False)).verdict("strict") == "fail"


def test_content_that_the_intruder_knows_counts(canaries: Canaries) -> None:
    name = "read an ssh key"
    secret = Path(told(canaries)[name][0]).read_text()
    assert judged(canaries, name, line(name, succeeded=True, detail=f"it is {secret}")).verdict("landlock") == "fail"


def test_intruder_is_not_told_what_the_canaries_hold(canaries: Canaries) -> None:
    description = Path(canaries.arguments[1]).read_text()
    assert Path(told(canaries)["read the secret store"][0]).read_text() not in description


@pytest.mark.parametrize(
    ("name", "succeeded", "verdicts"),
    [
        ("have capabilities", False, ("pass", "pass", "pass")),
        ("have capabilities", True, ("fail", "fail", "warn")),
        ("fill the temporary folder", True, ("fail", "warn", "warn")),
        ("use git", True, ("pass", "pass", "pass")),
        ("use git", False, ("fail", "fail", "fail")),
        ("reach its own server", False, ("fail", "warn", "fail")),
    ],
)
def test_verdict_depends_on_what_the_level_claims(
    canaries: Canaries, name: str, succeeded: bool, verdicts: tuple[str, str, str]
) -> None:
    found = judged(canaries, name, line(name, succeeded=succeeded))
    assert (found.verdict("strict"), found.verdict("landlock"), found.verdict("none")) == verdicts
