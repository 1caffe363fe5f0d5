"""Every tool call passes here: validate → gate → run → cap. Nothing a tool does can end the turn."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.core.aio import in_thread
from talaria.core.errors import BadArguments, Denied, ModelCorrectable, TalariaError, ToolFailed
from talaria.core.ids import CallId
from talaria.core.messages import Outcome, ToolCall, ToolResult
from talaria.tools.base import NOTHING, PRIVATE, Gate, Invocation, LiveOutput, RichResult, Run, Scope, Tool, digest
from talaria.tools.output import cap
from talaria.tools.registry import Toolbox
from talaria.tools.sandbox_permissions import PermissionKind

if TYPE_CHECKING:
    from talaria.tools.undo.change_recorder import ChangeRecorder, RecordedChanges
    from talaria.tools.undo.project_record import Recording

MAX_ERROR_CHARS = 8_000
MAX_OUTCOME_CHARS = 300
MIN_PROGRESS_FILES = 1_000
"""Recording fewer takes no longer than a moment, so no progress is shown."""

log = logging.getLogger(__name__)


class PreparedCall(msgspec.Struct, frozen=True):
    """A call whose tool exists and whose arguments are valid."""

    call: ToolCall
    tool: Tool
    invocation: Invocation


class Executor:
    def __init__(
        self,
        toolbox: Toolbox,
        gate: Gate,
        scope: Scope,
        find_recorder: "Callable[[], ChangeRecorder | None]" = lambda: None,
    ) -> None:
        """`find_recorder`: what makes changes to files undoable; asked for once a call may change some."""
        self._toolbox = toolbox
        self._gate = gate
        self._scope = scope
        self._find_recorder = find_recorder
        self._is_resolved = False
        self._admitted: dict[CallId, str] = {}
        """Digests of calls that the gate has admitted and that have not run yet."""

    def prepare(self, call: ToolCall) -> PreparedCall:
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
            log.exception("tool %s failed", call.name)
            raise ToolFailed(f"{call.name} failed: {type(fault).__name__}: {fault}") from fault
        return PreparedCall(call, tool, invocation)

    async def admit(self, prepared: PreparedCall) -> None:
        """Raises `Denied`."""
        await self._gate.admit(prepared.call, prepared.invocation, self._scope)
        self._admitted[prepared.call.id] = self._digest(prepared)

    async def insist(self, prepared: PreparedCall, doubt: str) -> None:
        """Only if a person says so, now. Raises `Denied`."""
        await self._gate.insist(prepared.call, prepared.invocation, self._scope, doubt)
        self._admitted[prepared.call.id] = self._digest(prepared)

    def _digest(self, prepared: PreparedCall) -> str:
        return digest(prepared.call, prepared.invocation, self._scope)

    async def call(self, call: ToolCall) -> ToolResult:
        """Prepare, admit and run, for callers other than the model."""
        try:
            prepared = await in_thread(lambda: self.prepare(call))
            await self.admit(prepared)
        except ModelCorrectable as refusal:
            return error_result(call, refusal)
        return await self.run(prepared)

    async def consent(self, call: ToolCall, invocation: Invocation, doubt: str = "", *, may_ask: bool = True) -> None:
        """Raises `Denied`."""
        scope, person = self._scope, self._scope.person
        if not may_ask:
            if person is not None and not person.may_approve():
                raise Denied("The person who allowed it may no longer allow anything.", by="nobody")
            scope = msgspec.structs.replace(scope, person=None)
        if doubt:
            await self._gate.insist(call, invocation, scope, doubt)
        else:
            await self._gate.admit(call, invocation, scope)
        self._gate.track(invocation.claim, scope)

    async def list_grants(self, kind: PermissionKind) -> tuple[tuple[str, ...], ...]:
        return await self._gate.list_grants(kind, self._scope)

    def remember(self, calls: Iterable[ToolCall]) -> None:
        """Track calls of this turn that ran before this executor was made: the model has seen their results."""
        for call in calls:
            with suppress(ModelCorrectable):
                self._gate.track(self.prepare(call).invocation.claim, self._scope)

    async def run(self, prepared: PreparedCall, live: LiveOutput | None = None) -> ToolResult:
        """Always returns a result; only cancellation passes through. What the gate has not admitted does not run.

        What the call may change is recorded before it runs, and compared afterwards.
        """
        call = prepared.call
        if self._admitted.pop(call.id, None) != self._digest(prepared):
            return error_result(call, f"This {call.name} call is not the one that was allowed; it did not run.")
        self._gate.track(prepared.invocation.claim, self._scope)
        result = await self._run_recorded(prepared, Run(call.id, self._scope, self, live))
        is_private = self._gate.has_private_data(self._scope)  # perhaps by calls that it made itself
        return msgspec.structs.replace(result, is_private=True) if is_private else result

    async def _run_recorded(self, prepared: PreparedCall, run: Run) -> ToolResult:
        touched = _find_touched_files(prepared.invocation)
        recorder = self._find_recorder() if touched != () else None
        if recorder is None:
            return await self._run_to_result(prepared, run)
        loop, live = asyncio.get_running_loop(), run.live

        def show_progress(done: int, total: int) -> None:
            if live is not None and total > MIN_PROGRESS_FILES:
                loop.call_soon_threadsafe(live.show, f"recording the project: {done:,} of {total:,} files")

        try:
            began = await recorder.begin(self._scope, touched, show_progress)
        except (OSError, TalariaError) as fault:
            if touched:
                return error_result(prepared.call, f"Nothing was changed, because it could not be undone: {fault}")
            log.warning("%s could not be recorded: %s", self._scope.cwd, fault)
            began = f"[What this changed cannot be undone: {fault}]"
        if isinstance(began, str):
            result = await self._run_to_result(prepared, run)
            return msgspec.structs.replace(result, text=f"{result.text}\n{began}") if began else result
        try:
            result = await self._run_to_result(prepared, run)
        except asyncio.CancelledError:
            await self._end_recording(recorder, began)
            raise
        recorded = await self._end_recording(recorder, began)
        if recorded.note:
            result = msgspec.structs.replace(result, text=f"{result.text}\n{recorded.note}")
        if result.changes:  # reported by the tool itself
            return result
        return msgspec.structs.replace(result, changes=recorded.changes, more_changes=recorded.more)

    async def _end_recording(self, recorder: "ChangeRecorder", recording: "Recording") -> "RecordedChanges":
        try:
            return await recorder.end(self._scope, recording)
        except (OSError, TalariaError) as fault:
            from talaria.tools.undo.change_recorder import RecordedChanges  # noqa: PLC0415  (loaded by now)

            log.warning("what was changed in %s could not be compared: %s", self._scope.cwd, fault)
            return RecordedChanges(note=f"[What this changed cannot be undone yet: {fault}]")

    async def _run_to_result(self, prepared: PreparedCall, run: Run) -> ToolResult:
        call, limit_s = prepared.call, prepared.tool.timeout_s
        deadline = asyncio.timeout(limit_s)
        try:
            try:
                async with deadline:
                    result = await prepared.invocation.run(run)
            except TimeoutError:
                if deadline.expired():
                    raise _TimedOut(limit_s or 0) from None
                raise
            shown = result if isinstance(result, RichResult) else RichResult(result)
            if shown.is_private:
                self._gate.track(PRIVATE, self._scope)
            return ToolResult(
                call.id,
                call.name,
                cap(shown.text, run.spill_file("result"), self._scope.redactor, self._scope.spill_limits),
                images=shown.images,
                outcome=shown.outcome,
                changes=shown.changes,
            )
        except ModelCorrectable as failure:
            return error_result(call, failure)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() > 0:  # cancelled from outside, not by the tool
                raise
            return error_result(call, f"{call.name} cancelled itself.")
        except (Exception, SystemExit) as fault:
            log.exception("tool %s failed", call.name)
            return error_result(call, f"{call.name} failed: {type(fault).__name__}: {fault}")


def _find_touched_files(invocation: Invocation) -> tuple[Path, ...] | None:
    """The files that a call may change; None: any file in the project."""
    claim = invocation.claim
    if claim.command is not None:
        return None
    if claim.writes:
        return claim.writes
    is_unknown = invocation.effect.kind == "exclusive" and claim != NOTHING and not claim.hosts
    return None if is_unknown else ()


class _TimedOut(ToolFailed):
    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"It took longer than {limit_s:.0f} seconds and was abandoned. It may still be running, so check."
        )
        self.limit_s = limit_s


def error_result(call: ToolCall, problem: ModelCorrectable | str) -> ToolResult:
    """The result of a call that failed or was refused. An error may quote anything: it is made UTF-8, and short."""
    text = _clean(str(problem), MAX_ERROR_CHARS)
    first = next((line for line in str(problem).split("\n") if line.strip()), "").strip()
    words = _clean(first.partition(". ")[0].removesuffix("."), MAX_OUTCOME_CHARS)
    match problem:
        case Denied(by=by, why=why):
            outcome = Outcome("refused", _clean(why, MAX_OUTCOME_CHARS) or words, by)
        case BadArguments():
            outcome = Outcome("invalid", words)
        case _TimedOut(limit_s=limit_s):
            outcome = Outcome("failed", f"timed out after {limit_s:.0f} s")
        case _:
            outcome = Outcome("failed", words)
    return ToolResult(call.id, call.name, f"Error: {text}", is_error=True, outcome=outcome)


def _clean(text: str, chars: int) -> str:
    return text[:chars].encode("utf-8", "replace").decode()
