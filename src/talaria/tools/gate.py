"""The gate of a session: applies the policy, remembers grants, and asks the person whose turn it is.

The person comes with each call, in its scope: a session may have several.
An approval is a row for one call, exactly as it was shown, for one use, until it expires.
"""

import asyncio
import logging
from functools import partial
from typing import Any

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.core.clock import Clock
from talaria.core.errors import Denied
from talaria.core.ids import OwnerId, SessionId, TurnId, new_approval_id, new_grant_id
from talaria.core.messages import ToolCall
from talaria.core.questions import Answer, Instead, Question
from talaria.store.permission_ports import Approvals, Grant, Grants, NewApproval
from talaria.tools.base import (
    ApprovalObserver,
    ApprovalOutcome,
    ApprovalRequest,
    Claim,
    Invocation,
    Scope,
    decode_arguments,
    digest,
)
from talaria.tools.person import ARGUMENTS, MAX_INSTEAD_CHARS, Person, Proposal, pretty_json
from talaria.tools.policy import EVERYTHING_BELOW, Policy, PolicyRequest, Verdict
from talaria.tools.sandbox_permissions import EVERYWHERE, SANDBOX, PermissionKind, is_granted, select_grants
from talaria.tools.shell_words import find_risk

log = logging.getLogger(__name__)

MAX_SHOWN_BYTES = 1_000_000
"""Nobody reads more than this, so nobody is asked about it."""
MAX_HEADLINE_CHARS = 5_000
"""It may name a path, which has at most 4,096 bytes."""
MAX_REFUSALS = 5
"""Once a person has said no to this many questions about the sandbox, they are not asked again in the same turn."""
GRANT_LIFETIME_S = 30 * 24 * 3600.0
"""How long a permanent yes is remembered."""
_OUTCOMES: dict[Answer, ApprovalOutcome] = {
    "no": "deny",
    "once": "once",
    "session": "session",
    "project": "always",
    "always": "always",
}
"""The words that observers get."""
ANYTHING = "*"
READING = "read"
"""Stands for a tool's name in a grant that holds for every tool that reads."""


class PolicyGate:
    def __init__(
        self,
        policy: Policy,
        approvals: Approvals,
        grants: Grants,
        *,
        session: SessionId,
        owner: OwnerId,
        clock: Clock,
        timeout_s: float,
        is_asking: bool = True,
        observer: ApprovalObserver | None = None,
    ) -> None:
        """`is_asking` False: calls that would need a question go ahead. The floor stays."""
        self._policy = policy
        self._approvals = approvals
        self._grants = grants
        self._session = session
        self._owner = owner
        self._clock = clock
        self._timeout_s = timeout_s
        self._is_asking = is_asking
        self._observer = observer
        self._tainted_turn = ""
        """The last turn that read content from strangers."""
        self._private_turn = ""
        """The last turn that read files outside the project. For earlier turns, see the scope."""
        self._refusals: tuple[str, list[tuple[str, str]]] = ("", [])
        """A turn, and what the person refused to open in it."""
        self._question_lock = asyncio.Lock()
        """One question at a time, even when calls run together."""

    def track(self, claim: Claim, scope: Scope) -> None:
        if claim.is_untrusted:
            self._tainted_turn = scope.turn or self._tainted_turn
        if claim.is_private or any(self._policy.is_private(path, scope.cwd) for path in claim.reads):
            self._private_turn = scope.turn or self._private_turn

    def has_private_data(self, scope: Scope) -> bool:
        is_named = any(self._policy.is_private(path, scope.cwd) for path in scope.named_paths)
        return scope.has_private_data or is_named or (bool(scope.turn) and scope.turn == self._private_turn)

    async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:
        verdict = await self._decide(call, invocation, scope)
        if verdict.decision == "ask" and (self._is_asking or verdict.kind == "opening"):
            await self._ask(call, invocation, scope, verdict)

    async def insist(self, call: ToolCall, invocation: Invocation, scope: Scope, doubt: str) -> None:
        await self._decide(call, invocation, scope)
        await self._ask(call, invocation, scope, Verdict("ask", doubt, "once"))

    async def list_grants(self, kind: PermissionKind, scope: Scope) -> tuple[tuple[str, ...], ...]:
        if scope.person is not None and not scope.person.may_approve():
            return ()
        if kind in ("port", "socket") and self.has_private_data(scope):  # as in the policy: the data could leave there
            return ()
        return tuple(select_grants(kind, await self._grants.list_valid(scope.asker, self._session), str(scope.cwd)))

    async def _decide(self, call: ToolCall, invocation: Invocation, scope: Scope) -> Verdict:
        """Raises `Denied`."""
        claim = invocation.claim
        request = PolicyRequest(
            call.name,
            claim,
            scope.cwd,
            is_tainted=bool(scope.turn) and scope.turn == self._tainted_turn,
            has_private_data=self.has_private_data(scope),
            spill=scope.spill,
            named_paths=scope.named_paths,
        )
        decide = partial(self._policy.decide, request)
        verdict = await in_thread(decide) if self._policy.looks_at_files(claim) else decide()
        if verdict.decision == "deny":
            refused = (
                f"This {call.name} call is refused"
                if claim.permission is None
                else f"Commands cannot {claim.permission.effect}"
            )
            raise Denied(f"{refused}: {verdict.reason}.", why=verdict.reason)
        return verdict

    async def _ask(self, call: ToolCall, invocation: Invocation, scope: Scope, verdict: Verdict) -> None:
        claim, permission = invocation.claim, invocation.claim.permission
        async with self._question_lock:
            if permission is not None and permission.kind == "unsandboxed" and verdict.longest != "once":
                # What commands have left in the project must not run outside by way of a yes that lasts.
                risk = await in_thread(lambda: find_risk(permission.what, claim.workdir, scope.cwd))
                if risk:
                    reason = f"{verdict.reason}; {risk}, so a yes is for this exact command only"
                    verdict = msgspec.structs.replace(verdict, reason=reason, longest="once", may_be_granted=False)
            covered = describe_coverage(call, claim, verdict)
            may_be_granted = verdict.may_be_granted and (verdict.longest != "once" or verdict.kind == "opening")
            if may_be_granted and await self._is_granted(covered, claim, scope):
                return  # perhaps granted while this call waited
            if verdict.kind == "opening" and not self._is_asking:
                sentence = (
                    f"This is refused, because questions are turned off and the sandbox stays closed: {verdict.reason}."
                )
                raise Denied(sentence, by="nobody", why="questions are turned off and the sandbox stays closed")
            if scope.person is None:
                needed = (
                    f"Commands cannot {permission.effect}, and nobody is here to allow it"
                    if permission is not None
                    else f"This {call.name} call needs a person's consent, and nobody is here to give it"
                )
                sentence = f"{needed}: {verdict.reason}. {verdict.remedy}".rstrip()
                raise Denied(sentence, by="nobody", why=f"nobody is here to allow it: {verdict.reason}")
            if verdict.kind == "opening":
                self._check_earlier_refusals(call, claim, scope)
            answer = await self._ask_person(call, invocation, scope, verdict, covered, scope.person)
            if verdict.kind == "opening" and (answer == "no" or isinstance(answer, Instead)):
                turn, refused = self._refusals
                self._refusals = (scope.turn, [*(refused if turn == scope.turn else ()), _request_key(claim)])
            if isinstance(answer, Instead):
                words = answer.words.strip()[:MAX_INSTEAD_CHARS]
                sentence = f"{_describe_no(call, claim)} Do this instead: {words}"
                raise Denied(sentence, by="person", why="the person wants something else")
            if answer not in ("no", "once") and verdict.longest != "once":
                now = self._clock.now()
                lasts = answer if verdict.longest == "always" else "session"
                is_for_good = lasts in ("project", "always")
                opens_sandbox = covered.tool == SANDBOX
                grant = Grant(
                    id=new_grant_id(),
                    person=scope.asker,
                    tool=covered.tool,
                    what=covered.exactly if is_for_good else covered.broadly,
                    cwd=EVERYWHERE if opens_sandbox and lasts == "always" else str(scope.cwd),
                    session=None if is_for_good else self._session,
                    created_at=now,
                    expires_at=now + GRANT_LIFETIME_S if is_for_good and not opens_sandbox else None,
                )
                await self._grants.add(grant)
        if answer == "no":
            sentence = f"{_describe_no(call, claim)} Ask what they want instead."
            raise Denied(sentence, by="person", why="the person said no")

    def _check_earlier_refusals(self, call: ToolCall, claim: Claim, scope: Scope) -> None:
        """A no holds for the turn, and after `MAX_REFUSALS` nobody is asked: otherwise a model asks until the person
        says yes. Raises `Denied`."""
        turn, refused = self._refusals
        if not scope.turn or turn != scope.turn:
            return
        if _request_key(claim) in refused:
            sentence = f"{_describe_no(call, claim)} They said no in this turn and are not asked again."
            raise Denied(sentence, by="person", why="the person has said no in this turn")
        if len(refused) >= MAX_REFUSALS:
            sentence = (
                f"The person has said no {MAX_REFUSALS} times in this turn to opening the sandbox, and is not asked "
                "again. Continue without it, or say what you need and why."
            )
            raise Denied(sentence, by="person", why=f"the person has said no {MAX_REFUSALS} times in this turn")

    async def _ask_person(
        self,
        call: ToolCall,
        invocation: Invocation,
        scope: Scope,
        verdict: Verdict,
        covered: "Coverage",
        person: Person,
    ) -> Answer | Instead:
        """The answer, on disk before anything is done because of it."""
        id = new_approval_id()
        question = await in_thread(lambda: _make_question(id, call, invocation, verdict, covered.words))
        shown = "\n".join(filter(None, (question.text, question.model_words)))
        what = digest(call, invocation, scope, shown)
        approval = NewApproval(
            id=id,
            session=self._session,
            turn=TurnId(scope.turn),
            call=call.id,
            owner=self._owner,
            requester=scope.asker,
            tool=call.name,
            question=shown,
            digest=what,
            expires_at=self._clock.now() + self._timeout_s,
        )
        await self._approvals.request(approval)
        observed = ApprovalRequest(call, invocation.claim.command or shown, verdict.reason, scope.turn)
        if self._observer is not None:
            await self._observer.on_request(observed)
        asking = asyncio.ensure_future(person.allow(question))
        limit = asyncio.ensure_future(self._clock.expire(self._timeout_s))
        try:
            try:
                await asyncio.wait([asking, limit], return_when=asyncio.FIRST_COMPLETED)
                answer = asking.result() if asking.done() else None
            finally:
                asking.cancel()
                limit.cancel()
        except asyncio.CancelledError:  # nobody waits for the answer any more: it must not be given elsewhere
            await complete(self._approvals.decide(id, is_allowed=False, by=scope.asker))
            raise
        except Denied:  # the person could not be shown all of it
            await self._approvals.decide(id, is_allowed=False, by=scope.asker)
            if self._observer is not None:
                await self._observer.on_answer(observed, "deny")
            raise
        except Exception:
            log.exception("a person could not be asked")
            answer = None
        if answer is None:
            if self._observer is not None:
                await self._observer.on_answer(observed, "timeout")
            sentence = f"Nobody answered in time whether {_describe_question(call, invocation.claim)}."
            raise Denied(sentence, by="nobody", why="nobody answered in time")
        is_no = answer == "no" or isinstance(answer, Instead)
        is_written = await self._approvals.decide(id, is_allowed=not is_no, by=scope.asker)
        is_valid = is_no or (is_written and await self._approvals.use(id, what))
        if self._observer is not None:
            await self._observer.on_answer(observed, "deny" if isinstance(answer, Instead) else _OUTCOMES[answer])
        if not is_valid:
            raise Denied(f"The answer whether {_describe_question(call, invocation.claim)} came too late.")
        return answer

    async def _is_granted(self, covered: "Coverage", claim: Claim, scope: Scope) -> bool:
        """Grants count only while the person may approve: somebody who is no longer an admin has none."""
        if scope.person is not None and not scope.person.may_approve():
            return False
        valid = await self._grants.list_valid(scope.asker, self._session)
        if claim.permission is not None:
            return is_granted(claim.permission, valid, str(scope.cwd))
        granted = [
            grant.what
            for grant in valid
            if grant.tool == covered.tool and (grant.session is not None or grant.cwd == str(scope.cwd))
        ]
        if covered.tool == READING:
            folders = [what.removesuffix(EVERYTHING_BELOW) for what in granted if what.endswith(EVERYTHING_BELOW)]
            return all(str(path) in granted or any(map(path.is_relative_to, folders)) for path in claim.reads)
        return covered.exactly in granted or covered.broadly in granted


def _request_key(claim: Claim) -> tuple[str, str]:
    """Equal if the same thing is asked for again."""
    return (claim.permission.key if claim.permission is not None else "", claim.command or "")


def _describe_no(call: ToolCall, claim: Claim) -> str:
    if claim.permission is None:
        return f"The person said no to this {call.name} call."
    return f"The person does not want commands to {claim.permission.effect}."


def _describe_question(call: ToolCall, claim: Claim) -> str:
    return f"this {call.name} call may run" if claim.permission is None else f"commands may {claim.permission.effect}"


def _make_question(id: str, call: ToolCall, invocation: Invocation, verdict: Verdict, covered: str) -> Question:
    """Shows everything that the model gave: for a tool without a question of its own, the arguments of the call.

    Raises `Denied` if nobody could read that much.
    """
    match invocation.question:
        case Proposal() as proposal:
            pass
        case str(words):
            headline, _, rest = words.partition("\n")
            proposal = Proposal(headline, rest or None)
        case None:
            given = decode_arguments(call.arguments, call.name, dict[str, Any])
            proposal = Proposal(f"Let {call.name} do this?", pretty_json(given), ARGUMENTS)
    if verdict.kind == "reading" and verdict.longest != "once":
        lasting = f"{proposal.headline} (A lasting yes covers {covered}, in this project.)"
        proposal = msgspec.structs.replace(proposal, headline=lasting)
    # The name of a folder or file may contain anything, even line breaks.
    headline, place = (words.replace("\n", "\\n") for words in (proposal.headline, invocation.claim.workdir))
    if len(headline) > MAX_HEADLINE_CHARS:
        raise Denied(f"This {call.name} call is refused: the name of its target is too long to show.")
    size = len((proposal.content or "").encode("utf-8", "replace"))
    if size > MAX_SHOWN_BYTES:
        raise Denied(
            f"This {call.name} call is refused: it has {size:,} bytes, and a person can be shown at most "
            f"{MAX_SHOWN_BYTES:,}. Do it in smaller pieces."
        )
    return Question(
        id,
        call.name,
        headline,
        verdict.reason,
        verdict.longest,
        covered,
        proposal.content,
        proposal.noun,
        place,
        proposal.note,
        proposal.changes,
        proposal.model_reason,
        opens_sandbox=verdict.kind == "opening",
        title=invocation.claim.permission.title if invocation.claim.permission is not None else "",
    )


class Coverage(msgspec.Struct, frozen=True):
    """What a yes covers."""

    tool: str
    """Or `READING`: any tool that reads."""
    exactly: str
    """Permanently: this command in this folder, these files, this host, or exactly the same call."""
    broadly: str
    """In this session: any command, these files, this host; otherwise whatever this tool does."""
    words: str
    """What `broadly` covers, for people."""


def describe_coverage(call: ToolCall, claim: Claim, verdict: Verdict) -> Coverage:
    if verdict.kind == "reading":
        is_folder = verdict.covers.endswith(EVERYTHING_BELOW)
        words = f"everything in {verdict.covers.removesuffix(EVERYTHING_BELOW)}" if is_folder else "this file"
        return Coverage(READING, verdict.covers, verdict.covers, words)
    if claim.permission is not None:
        return Coverage(SANDBOX, claim.permission.key, claim.permission.key, claim.permission.short_description)
    # a yes given before anything private was read is not a yes to letting it leave
    knowing = " (private data may leave)" if verdict.kind == "revealing" else ""
    if claim.command is not None:
        exactly = f"{claim.command}\n(in {claim.workdir})"
        if verdict.kind == "deleting":  # a yes to any command does not cover this one, nor the reverse
            this = f"{exactly} (deletes)"
            return Coverage(call.name, this, this, "this command")
        return Coverage(call.name, f"{exactly}{knowing}", f"{ANYTHING}{knowing}", "any command")
    touched = "\n".join((*map(str, (*claim.writes, *claim.reads)), *claim.hosts))
    if touched:
        words = "this file" if claim.writes or claim.reads else "this host"
        return Coverage(call.name, f"{touched}{knowing}", f"{touched}{knowing}", words)
    return Coverage(call.name, f"{call.arguments}{knowing}", f"{ANYTHING}{knowing}", "whatever this tool does")
