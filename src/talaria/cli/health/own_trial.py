"""Trying what Talaria itself promises beside the sandbox: that questions show everything, and that a restore deletes no
home."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from talaria.cli.backup.restore import replace_home, reserve_aside
from talaria.cli.health.checks import Finding
from talaria.core.clock import SystemClock
from talaria.core.errors import Denied
from talaria.core.ids import CallId, OwnerId, SessionId
from talaria.core.messages import ToolCall
from talaria.store.base import NewSession
from talaria.store.memory import MemoryStore
from talaria.tools.base import Scope
from talaria.tools.builtin.file_tools import file_tools
from talaria.tools.file_content import ReadFiles
from talaria.tools.gate import MAX_SHOWN_BYTES, PolicyGate
from talaria.tools.person import Answer, Question
from talaria.tools.policy import ApprovalSettings, Policy
from talaria.tools.protected import Protected

HIDDEN = "have a person agree to more than they see"
LOST = "lose a home by two restores in one second"
_END = "the very end"


def examine() -> Iterator[Finding]:
    yield _judge(HIDDEN, asyncio.run(_hides_something()))
    yield _judge(LOST, _loses_a_home())


def _judge(name: str, has_succeeded: bool) -> Finding:
    return Finding(name, "fail" if has_succeeded else "ok", "SUCCEEDS" if has_succeeded else "fails")


class _Reader:
    """Says no, and keeps what was shown."""

    def __init__(self) -> None:
        self.shown = ""

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer:
        self.shown = question.text
        return "no"

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:  # noqa: ARG002
        return None


async def _hides_something() -> bool:
    """A large file and one that is too large to be shown, both outside the project. Nothing is written."""
    clock, session = SystemClock(), SessionId("trial")
    outside, project = Path("/talaria-trial/outside"), Path("/talaria-trial/project")
    policy = Policy(ApprovalSettings(), Protected(Path("/talaria-trial"), Path("/talaria-trial/home")))
    write = next(tool for tool in file_tools(ReadFiles()) if tool.spec.name == "write_file")
    async with MemoryStore(clock) as store:
        await store.sessions.create(NewSession(session, "terminal"))
        gate = PolicyGate(
            policy, store.approvals, store.grants, session=session, owner=OwnerId("trial"), clock=clock, timeout_s=5.0
        )
        shown: list[str] = []
        for size in (MAX_SHOWN_BYTES // 2, MAX_SHOWN_BYTES + 1):
            reader = _Reader()
            scope = Scope(session, project, project / "spill", turn="trial", person=reader)
            arguments = {"path": str(outside), "content": "x\n" * (size // 2) + _END}
            call = ToolCall(CallId("trial"), "write_file", msgspec.json.encode(arguments).decode())
            try:
                await gate.admit(call, write.prepare(call.arguments, scope), scope)
            except Denied:
                shown.append(reader.shown)
            else:
                return True
    return not (shown[0].rstrip().endswith(_END) and not shown[1])


def _loses_a_home() -> bool:
    with TemporaryDirectory(prefix="talaria-trial-") as name:
        home = Path(name).resolve() / "home"
        for number in range(3):
            new = home.with_name(f"new-{number}") if number else home
            new.mkdir()
            (new / "number").write_text(str(number))
            if number:
                replace_home(home, new, reserve_aside(home))
        return sorted(file.read_text() for file in home.parent.glob("*/number")) != ["0", "1", "2"]
