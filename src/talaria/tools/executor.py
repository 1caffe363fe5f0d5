"""Every tool call passes here: validate → gate → run → cap. Nothing a tool does can end the turn."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.model.errors import ModelCorrectable, TalariaError, ToolFailed
from talaria.model.ids import CallId
from talaria.model.messages import ToolCall, ToolResult
from talaria.tools.approval import Gate, digest
from talaria.tools.base import NOTHING, PRIVATE, Invocation, Run, Scope, Shown, Tool
from talaria.tools.output import cap
from talaria.tools.registry import Toolbox
from talaria.waiting import in_thread

if TYPE_CHECKING:
    from talaria.tools.undo.project import Recording
    from talaria.tools.undo.recorder import Recorded, Recorder

MAX_ERROR_CHARS = 8_000

log = logging.getLogger(__name__)


class Prepared(msgspec.Struct, frozen=True):
    """A call that may run: its tool exists and its arguments are right."""

    call: ToolCall
    tool: Tool
    invocation: Invocation


class Executor:
    def __init__(self, toolbox: Toolbox, gate: Gate, scope: Scope, recorder: "Recorder | None" = None) -> None:
        """`recorder`: makes what calls change in files undoable."""
        self._toolbox = toolbox
        self._gate = gate
        self._scope = scope
        self._recorder = recorder
        self._is_resolved = False
        self._admitted: dict[CallId, str] = {}
        """What the gate has let through, and has not run yet."""

    def prepare(self, call: ToolCall) -> Prepared:
        """Raises `ModelCorrectable`, whatever the tool does. Not on the loop: it may look at the file system."""
        tool = self._toolbox.find(call.name)
        if not self._is_resolved:
            self._scope = msgspec.structs.replace(self._scope, cwd=self._scope.cwd.resolve())
            self._is_resolved = True
        try:
            invocation = tool.prepare(call.arguments, self._scope)
        except ModelCorrectable:
            raise
        except Exception as fault:
            log.exception("tool %s broke", call.name)
            raise ToolFailed(f"{call.name} broke: {type(fault).__name__}: {fault}") from fault
        return Prepared(call, tool, invocation)

    async def admit(self, prepared: Prepared) -> None:
        """Raises `Denied`."""
        await self._gate.admit(prepared.call, prepared.invocation, self._scope)
        self._admitted[prepared.call.id] = self._digest(prepared)

    async def insist(self, prepared: Prepared, doubt: str) -> None:
        """Only if a person says so, now. Raises `Denied`."""
        await self._gate.insist(prepared.call, prepared.invocation, self._scope, doubt)
        self._admitted[prepared.call.id] = self._digest(prepared)

    def _digest(self, prepared: Prepared) -> str:
        return digest(prepared.call, prepared.invocation, self._scope)

    async def call(self, call: ToolCall) -> ToolResult:
        """All the way: for those who are not the model, but have no other way either."""
        try:
            prepared = await in_thread(lambda: self.prepare(call))
            await self.admit(prepared)
        except ModelCorrectable as refusal:
            return failed(call, str(refusal))
        return await self.run(prepared)

    async def consent(self, call: ToolCall, invocation: Invocation, doubt: str = "") -> None:
        """Raises `Denied`."""
        if doubt:
            await self._gate.insist(call, invocation, self._scope, doubt)
        else:
            await self._gate.admit(call, invocation, self._scope)

    def remember(self, calls: Iterable[ToolCall]) -> None:
        """Calls of this turn that have run before we were here: what they brought is before the model."""
        for call in calls:
            with suppress(ModelCorrectable):
                self._gate.heed(self.prepare(call).invocation.claim, self._scope)

    async def run(self, prepared: Prepared) -> ToolResult:
        """Always an outcome; only cancellation passes through. What the gate has not let through does not run."""
        call = prepared.call
        if self._admitted.pop(call.id, None) != self._digest(prepared):
            return failed(call, f"This {call.name} call is not the one that was allowed; it did not run.")
        self._gate.heed(prepared.invocation.claim, self._scope)
        result = await self._recorded(prepared)
        is_private = self._gate.has_private_data(self._scope)  # also through calls that it has made itself
        return msgspec.structs.replace(result, is_private=True) if is_private else result

    async def _recorded(self, prepared: Prepared) -> ToolResult:
        """What it may change is recorded before it runs, and compared afterwards."""
        run, recorder = Run(prepared.call.id, self._scope, self), self._recorder
        touched = _touched(prepared.invocation)
        if recorder is None or touched == ():
            return await self._outcome(prepared, run)
        try:
            began = await recorder.begin(self._scope, touched)
        except (OSError, TalariaError) as fault:
            if touched:
                return failed(prepared.call, f"Nothing was changed, because it could not be undone: {fault}")
            log.warning("%s could not be recorded: %s", self._scope.cwd, fault)
            began = f"[What this changed cannot be undone: {fault}]"
        if isinstance(began, str):
            result = await self._outcome(prepared, run)
            return msgspec.structs.replace(result, text=f"{result.text}\n{began}") if began else result
        try:
            result = await self._outcome(prepared, run)
        except asyncio.CancelledError:
            await self._compared(began)
            raise
        recorded = await self._compared(began)
        if recorded.note:
            result = msgspec.structs.replace(result, text=f"{result.text}\n{recorded.note}")
        if result.changes:  # the tool has told them itself
            return result
        return msgspec.structs.replace(result, changes=recorded.changes, more_changes=recorded.more)

    async def _compared(self, recording: "Recording") -> "Recorded":
        from talaria.tools.undo.recorder import Recorded  # noqa: PLC0415  (loaded by now)

        if self._recorder is None:
            return Recorded()
        try:
            return await self._recorder.end(self._scope, recording)
        except (OSError, TalariaError) as fault:
            log.warning("what was changed in %s could not be compared: %s", self._scope.cwd, fault)
            return Recorded(note=f"[What this changed cannot be undone yet: {fault}]")

    async def _outcome(self, prepared: Prepared, run: Run) -> ToolResult:
        call = prepared.call
        try:
            result = await self._run(prepared, run)
            shown = result if isinstance(result, Shown) else Shown(result)
            if shown.is_private:
                self._gate.heed(PRIVATE, self._scope)
            return ToolResult(
                call.id,
                call.name,
                cap(shown.text, run.spill("result"), self._scope.redactor, self._scope.spill_limits),
                images=shown.images,
                outcome=shown.outcome,
                changes=shown.changes,
            )
        except ModelCorrectable as failure:
            return failed(call, str(failure))
        except asyncio.CancelledError:
            if _is_wanted():
                raise
            return failed(call, f"{call.name} cancelled itself.")
        except (Exception, SystemExit) as fault:
            log.exception("tool %s broke", call.name)
            return failed(call, f"{call.name} broke: {type(fault).__name__}: {fault}")

    async def _run(self, prepared: Prepared, run: Run) -> str | Shown:
        limit = prepared.tool.timeout_s
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                return await prepared.invocation.run(run)
        except TimeoutError:
            if deadline.expired():
                raise ToolFailed(
                    f"It took longer than {limit:.0f} seconds and was given up; it may still be running. Check."
                ) from None
            raise


def _touched(invocation: Invocation) -> tuple[Path, ...] | None:
    """The files that a call can change; None: any in the project."""
    claim = invocation.claim
    if claim.command is not None:
        return None
    if claim.writes:
        return claim.writes
    is_unknown = invocation.effect.kind == "exclusive" and claim != NOTHING and not claim.hosts
    return None if is_unknown else ()


def failed(call: ToolCall, sentence: str) -> ToolResult:
    """As short as UTF-8 allows: an error may quote anything."""
    clean = sentence[:MAX_ERROR_CHARS].encode("utf-8", "replace").decode()
    return ToolResult(call.id, call.name, f"Error: {clean}", is_error=True)


def _is_wanted() -> bool:
    """Whether somebody cancelled this task, rather than the tool raising it."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
