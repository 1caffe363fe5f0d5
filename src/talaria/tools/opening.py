"""Asks the person about what a running command wants outside its sandbox, while the command waits for the answer."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, nullcontext

import msgspec

from talaria.model.errors import BadArguments, Denied
from talaria.model.ids import CallId
from talaria.model.messages import ToolCall
from talaria.tools.base import EXCLUSIVE, Claim, Effect, Run
from talaria.tools.permissions import SANDBOX, Permission, network
from talaria.tools.person import Proposal
from talaria.tools.sandbox.commands import Started
from talaria.tools.sandbox.way_out import WayOut


class _Opening(msgspec.Struct, frozen=True):
    """As if the model had asked to open the sandbox."""

    claim: Claim
    question: Proposal
    effect: Effect = EXCLUSIVE

    async def run(self, run: Run) -> str:  # noqa: ARG002
        return ""


async def ask_to_open(run: Run, permission: Permission, command: str, place: str, *, may_ask: bool = True) -> None:
    """Whether commands may do this from now on, for as long as the person says. Raises `Denied`."""
    if run.tools is None:
        raise Denied(f"Commands cannot {permission.effect}: nobody is here to allow it.", by="nobody")
    call = ToolCall(
        CallId(f"{run.call}-{permission.key}"), SANDBOX, msgspec.json.encode({"permission": permission.key}).decode()
    )
    claim = Claim(hosts=permission.what, place=place, is_untrusted=True, permission=permission)
    question = Proposal(f"Let commands {permission.effect}?", command, "command")
    await run.tools.consent(call, _Opening(claim, question), may_ask=may_ask)


def blocked_hosts(way_out: WayOut) -> str:
    """What follows the output of a command; empty: it has reached all that it tried."""
    return "".join(f"\n[sandbox: {host} was blocked]" for host in way_out.take_refused())


class RunningConsent:
    """Decides for the commands of a session that run now. Which of them wants something is not known, so the person is
    asked about the one that began last."""

    def __init__(self) -> None:
        self._running: dict[CallId, _Asking] = {}

    @contextmanager
    def attend(self, run: Run, command: str, place: str, *, may_ask: bool = True) -> Generator["_Asking"]:
        """While a command runs. Not `may_ask`: in the background, where only what was granted before counts."""
        asking = _Asking(run, command, place, may_ask=may_ask)
        self._running[run.call] = asking
        try:
            yield asking
        finally:
            self._running.pop(run.call, None)

    async def allow_host(self, host: str) -> None:
        """Raises `Denied`."""
        try:
            permission = network(host)
        except BadArguments as fault:
            raise Denied(str(fault)) from fault
        running = [*self._running.values()]
        newest = next((one for one in reversed(running) if one.may_ask), running[-1] if running else None)
        if newest is None:
            raise Denied(f"Commands do not reach {host} from here: no command runs that somebody could be asked about.")
        await newest.allow(permission)


class _Asking:
    """One command. An answer holds as long as it runs, so programs that try again and again do not ask again."""

    def __init__(self, run: Run, command: str, place: str, *, may_ask: bool) -> None:
        self.may_ask = may_ask
        self.started: Started | None = None
        self._run = run
        self._command = command
        self._place = place
        self._locks: dict[str, asyncio.Lock] = {}
        self._answers: dict[str, Denied | None] = {}

    async def allow(self, permission: Permission) -> None:
        key = permission.key
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._answers:
                try:
                    with self.started.pause_limit() if self.started is not None else nullcontext():
                        await ask_to_open(self._run, permission, self._command, self._place, may_ask=self.may_ask)
                    self._answers[key] = None
                except Denied as refusal:
                    self._answers[key] = refusal
        refusal = self._answers[key]
        if refusal is not None:
            raise Denied(str(refusal), by=refusal.by, why=refusal.why)
