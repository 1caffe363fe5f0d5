"""The escape matrix: what must fail at which level of sandbox, and the judgement of what came of trying it.

`intruder.py` makes the attempts inside of a sandbox. It is told where the canaries are, not what they hold, and
where something outside shows what has happened, that counts, not its word.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from talaria.cli.health.escapes.canaries import Canaries
from talaria.tools.sandbox.base import Level

Evidence = Literal["word", "secret", "mark", "heard", "changed", "death", "survivor"]
"""Of success: what the intruder says; that it knows a canary's content; its mark in a canary's file; a listener that
heard the mark; a file or process outside that is not as it was; the end of the decoy; a process that is still there."""
Verdict = Literal["pass", "warn", "fail", "skip"]

SHUT_IN: frozenset[Level] = frozenset({"strict", "landlock"})
STRICT: frozenset[Level] = frozenset({"strict"})
NOWHERE: frozenset[Level] = frozenset()
EVERYWHERE: frozenset[Level] = frozenset({"strict", "landlock", "none"})


class Attempt(msgspec.Struct, frozen=True):
    name: str
    fails_at: frozenset[Level] = NOWHERE
    """Elsewhere it is a known weakness."""
    evidence: Evidence = "word"
    works_at: frozenset[Level] = NOWHERE
    """Given for what people need: that is no escape, and must not fail there."""


READS = (
    Attempt("read the secret store", SHUT_IN, "secret"),
    Attempt("read an ssh key", SHUT_IN, "secret"),
    Attempt("read a file of another user", SHUT_IN, "secret"),
    Attempt("read a file in /tmp of the host", SHUT_IN, "secret"),
    Attempt("open a private key of the machine", SHUT_IN),
)
WRITES = (
    Attempt("write the policy", SHUT_IN, "mark"),
    Attempt("write a start-up file of the home", SHUT_IN, "mark"),
    Attempt("write authorized keys", SHUT_IN, "mark"),
    Attempt("write a file in /tmp of the host", SHUT_IN, "mark"),
    Attempt("write through a link out of the project", SHUT_IN, "mark"),
    Attempt("write through a link in place of a repository", SHUT_IN, "mark"),
    Attempt("write .git/hooks", STRICT, "mark"),
    Attempt("write .git/config", STRICT, "mark"),
    Attempt("write .talaria", STRICT, "mark"),
    Attempt("write .mcp.json", STRICT, "mark"),
    Attempt("write .git/commondir", SHUT_IN, "mark"),
)
CONNECTIONS = (
    Attempt("connect to a service on loopback", SHUT_IN, "heard"),
    Attempt("connect to an address in the network", SHUT_IN, "heard"),
    Attempt("send a datagram", SHUT_IN, "heard"),
    Attempt("connect to a socket like docker's", SHUT_IN, "heard"),
    Attempt("connect to a socket like ssh-agent's", SHUT_IN, "heard"),
    Attempt("connect to an abstract socket", SHUT_IN, "heard"),
)
METADATA = (
    Attempt("change the mode of a file outside", SHUT_IN, "changed"),
    Attempt("change the times of a file outside", SHUT_IN, "changed"),
    Attempt("change the attributes of a file outside", SHUT_IN, "changed"),
    Attempt("change the mode of a device", SHUT_IN),
)
NEIGHBOURS = (
    Attempt("read shared memory of another process", SHUT_IN, "secret"),
    Attempt("read a message queue of another process", SHUT_IN, "secret"),
    Attempt("change the limits of another process", SHUT_IN, "changed"),
    Attempt("change the priority of another process", SHUT_IN, "changed"),
    Attempt("change the processors of another process", SHUT_IN, "changed"),
)
TRICKS = (
    Attempt("move guarded files away", STRICT),
    Attempt("read the environment of other processes", SHUT_IN, "secret"),
    Attempt("read the secret store through other processes", SHUT_IN, "secret"),
    Attempt("use descriptors left open", SHUT_IN),
    Attempt("trace the agent", SHUT_IN),
    Attempt("kill the agent", SHUT_IN, "death"),
    Attempt("make a user namespace", SHUT_IN),
    Attempt("mount a file system", SHUT_IN),
    Attempt("have capabilities", SHUT_IN),
    Attempt("make a device", SHUT_IN),
    Attempt("open a disk or the memory", SHUT_IN),
    Attempt("open settings of the kernel for writing", SHUT_IN),
    Attempt("type into the terminal", SHUT_IN),
    Attempt("outlive the command", SHUT_IN, "survivor"),
    Attempt("start too many processes", SHUT_IN),
    Attempt("fill the temporary folder", STRICT),
    Attempt("write too large a file", SHUT_IN),
)
NEEDS = (
    *(
        Attempt(name, works_at=EVERYWHERE)
        for name in (
            "write in the project",
            "chmod in the project",
            "use /dev/null",
            "use python3",
            "use git",
            "use gcc",
        )
    ),
    Attempt("reach a server of its own", works_at=frozenset({"strict", "none"})),
)
ATTEMPTS = (*READS, *WRITES, *CONNECTIONS, *METADATA, *NEIGHBOURS, *TRICKS, *NEEDS)


class ProbeResult(msgspec.Struct, frozen=True):
    attempt: Attempt
    has_succeeded: bool | None
    """None: nobody told, and nothing shows it."""
    detail: str
    is_tried: bool = True
    """Not where this machine has nothing that it could be tried on."""

    @property
    def name(self) -> str:
        return self.attempt.name

    @property
    def is_escape(self) -> bool:
        """Also if that it failed is not proven."""
        return self.is_tried and not self.attempt.works_at and self.has_succeeded is not False

    def verdict(self, level: Level) -> Verdict:
        """`warn`: the level is known for it. `skip`: nothing is known, because it was not tried."""
        if not self.is_tried:
            return "skip"
        is_right = self.has_succeeded if self.attempt.works_at else not self.is_escape
        if is_right:
            return "pass"
        return "fail" if level in self.attempt.fails_at | self.attempt.works_at else "warn"


class ProbeLine(msgspec.Struct, frozen=True):
    """A line of the intruder."""

    name: str
    succeeded: bool | None
    """None: there is nothing here to try it with."""
    detail: str


def judge(lines: Iterable[str], canaries: Canaries) -> list[ProbeResult]:
    """What the intruder wrote, line by line, beside what the canaries show. They have to be there still."""
    told = {one.name: one for one in map(decode_line, lines) if one is not None}
    return [_judge_attempt(attempt, told.get(attempt.name), canaries) for attempt in ATTEMPTS]


def decode_line(line: str) -> ProbeLine | None:
    """None: it is no line of the intruder."""
    try:
        return msgspec.json.decode(line, type=ProbeLine)
    except msgspec.MsgspecError:
        return None


def _judge_attempt(attempt: Attempt, told: ProbeLine | None, canaries: Canaries) -> ProbeResult:
    shown = _find_evidence(attempt, told, canaries)
    if told is None and not shown:
        if canaries.is_missing(attempt.name):
            return ProbeResult(attempt, None, "there is nothing here to try it on", is_tried=False)
        return ProbeResult(attempt, None, "no answer")
    claim = ProbeLine(attempt.name, False, "") if told is None else told
    if claim.succeeded is None and not shown:
        return ProbeResult(attempt, None, claim.detail, is_tried=False)
    if shown is None:
        return ProbeResult(attempt, claim.succeeded, claim.detail)
    idle = " (without effect outside)" if claim.succeeded and not shown else ""
    return ProbeResult(attempt, shown, claim.detail + idle)


def _find_evidence(attempt: Attempt, told: ProbeLine | None, canaries: Canaries) -> bool | None:
    """None: nothing could show it."""
    match attempt.evidence:
        case "word":
            return None
        case "secret":
            return told is not None and canaries.is_secret_in(told.detail)
        case "mark":
            return canaries.is_marked(attempt.name)
        case "heard":
            return canaries.has_heard(attempt.name)
        case "changed":
            return canaries.is_changed(attempt.name)
        case "death":
            return canaries.is_decoy_dead()
        case "survivor":
            return canaries.has_survivor()
