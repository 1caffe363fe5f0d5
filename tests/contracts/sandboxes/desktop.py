"""Sessions of one person who can be asked, with commands in a real sandbox."""

import asyncio
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from talaria.core.clock import SystemClock
from talaria.core.ids import CallId, OwnerId, SessionId
from talaria.core.messages import ToolCall, ToolResult
from talaria.core.questions import Answer, Instead, Question
from talaria.store.base import Store
from talaria.testing.patience import PATIENCE_S
from talaria.tools.base import Claim, Scope
from talaria.tools.builtin.code import code_tools
from talaria.tools.builtin.terminal import terminal_tools
from talaria.tools.executor import Executor
from talaria.tools.gate import PolicyGate
from talaria.tools.person import Person
from talaria.tools.policy import ApprovalSettings, Policy
from talaria.tools.protected import Protected
from talaria.tools.registry import Toolbox
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings
from talaria.tools.workspaces import Workspaces


def git(folder: Path, *words: str) -> str:
    settings = ("commit.gpgsign=false", "user.name=Ada", "user.email=ada@example.org")
    words = ("git", "-C", str(folder), *(word for one in settings for word in ("-c", one)), *words)
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "file").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.02)


class Ada:
    """Answers in this order; more than that she is not asked."""

    def __init__(self, *answers: Answer | Instead) -> None:
        self._answers = list(answers)
        self.asked: list[Question] = []
        self.is_admin = True

    def may_approve(self) -> bool:
        return self.is_admin

    async def allow(self, question: Question) -> Answer | Instead:
        self.asked.append(question)
        return self._answers.pop(0)

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        return None


class Desktop:
    """Sessions of one person, in folders of theirs."""

    def __init__(
        self,
        store: Store,
        owner: OwnerId,
        folder: Path,
        backend: Backend = "bubblewrap",
        *,
        env: tuple[str, ...] = (),
        network: tuple[str, ...] = (),
    ) -> None:
        self._store = store
        self._owner = owner
        self.folder = folder
        settings = TerminalSettings(backend=backend, env=env, network=network)
        self.workspaces = Workspaces(settings, folder / "home", SystemClock(), private=("127.0.0.1", "127.0.0.2"))

    async def run(
        self,
        command: str,
        person: Person | None,
        *,
        session: str = "s1",
        project: str = "work",
        tool: str = "terminal",
        heard: Claim | None = None,
        is_asking: bool = True,
        asker: str = "local",
        turn: str = "t1",
        gate: PolicyGate | None = None,
        **more: Any,
    ) -> ToolResult:
        cwd = self.folder / project
        cwd.mkdir(exist_ok=True)
        spill = self.folder / "home/spill" / session
        spill.mkdir(parents=True, exist_ok=True)
        scope = Scope(SessionId(session), cwd, spill, turn=turn, person=person, asker=asker)
        gate = gate or self.gate(session, is_asking=is_asking)
        if heard is not None:
            gate.track(heard, scope)
        tools = Toolbox((*terminal_tools(self.workspaces), *code_tools(self.workspaces)))
        arguments = {"command" if tool == "terminal" else "code": command, **more}
        return await Executor(tools, gate, scope).call(ToolCall(CallId("c1"), tool, json.dumps(arguments)))

    def gate(self, session: str = "s1", *, is_asking: bool = True) -> PolicyGate:
        """One that knows nothing of earlier questions."""
        return PolicyGate(
            Policy(ApprovalSettings(), Protected(self.folder / "person", self.folder / "home")),
            self._store.approvals,
            self._store.grants,
            session=SessionId(session),
            owner=self._owner,
            clock=SystemClock(),
            timeout_s=60,
            is_asking=is_asking,
        )

    async def close(self) -> None:
        await self.workspaces.aclose()
