"""The escape matrix: which attempts must fail at which level of sandbox, and how to judge what came of them.

`intruder.py` makes the attempts inside a sandbox. It knows where the canaries are, but not what they contain. Where
something outside shows what happened, that counts, and not the intruder's word.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from talaria.cli.health.escapes.canaries import Canaries
from talaria.tools.sandbox.base import Level

Evidence = Literal["word", "secret", "mark", "heard", "changed", "death", "survivor"]
"""Of success: what the intruder says; that it knows a canary's content; its mark in a canary's file; a listener that
received the mark; a file or process outside that has changed; the death of the decoy; a process that is still alive."""
Verdict = Literal["pass", "warn", "fail", "skip"]

SHUT_IN: frozenset[Level] = frozenset({"strict", "landlock"})
STRICT: frozenset[Level] = frozenset({"strict"})
NOWHERE: frozenset[Level] = frozenset()
EVERYWHERE: frozenset[Level] = frozenset({"strict", "landlock", "none"})


class Attempt(msgspec.Struct, frozen=True):
    name: str
    fails_at: frozenset[Level] = NOWHERE
    """At other levels it is a known weakness."""
    evidence: Evidence = "word"
    works_at: frozenset[Level] = NOWHERE
    """Set for what people need: that is not an escape, and must not fail there."""


READS = (
    Attempt("read the secret store", SHUT_IN, "secret"),
    Attempt("read an ssh key", SHUT_IN, "secret"),
    Attempt("read a file of another user", SHUT_IN, "secret"),
    Attempt("read a file in the host's /tmp", SHUT_IN, "secret"),
    Attempt("open a private key of the machine", SHUT_IN),
)
WRITES = (
    Attempt("write the policy", SHUT_IN, "mark"),
    Attempt("write a start-up file in the home", SHUT_IN, "mark"),
    Attempt("write authorized keys", SHUT_IN, "mark"),
    Attempt("write a file in the host's /tmp", SHUT_IN, "mark"),
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
    Attempt("create a user namespace", SHUT_IN),
    Attempt("mount a file system", SHUT_IN),
    Attempt("have capabilities", SHUT_IN),
    Attempt("create a device", SHUT_IN),
    Attempt("open a disk or the memory", SHUT_IN),
    Attempt("open kernel settings for writing", SHUT_IN),
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
    Attempt("reach its own server", works_at=frozenset({"strict", "none"})),
)
ATTEMPTS = (*READS, *WRITES, *CONNECTIONS, *METADATA, *NEIGHBOURS, *TRICKS, *NEEDS)


class ProbeResult(msgspec.Struct, frozen=True):
    attempt: Attempt
    has_succeeded: bool | None
    """None: unknown."""
    detail: str
    is_tried: bool = True
    """False where this machine has nothing to try it on."""

    @property
    def name(self) -> str:
        return self.attempt.name

    @property
    def is_escape(self) -> bool:
        """True unless it is proven that it failed."""
        return self.is_tried and not self.attempt.works_at and self.has_succeeded is not False

    @property
    def is_right(self) -> bool:
        return bool(self.has_succeeded) if self.attempt.works_at else not self.is_escape

    def verdict(self, level: Level) -> Verdict:
        """`warn`: a known weakness of the level. `skip`: it was not tried, so nothing is known."""
        if not self.is_tried:
            return "skip"
        if self.is_right:
            return "pass"
        return "fail" if level in self.attempt.fails_at | self.attempt.works_at else "warn"


class ProbeLine(msgspec.Struct, frozen=True):
    """A line that the intruder prints."""

    name: str
    succeeded: bool | None
    """None: it lacks what it needs to try."""
    detail: str


def judge(lines: Iterable[str], canaries: Canaries) -> list[ProbeResult]:
    """Compares what the intruder printed with what the canaries show, which must still be planted."""
    reported = {one.name: one for one in map(decode_line, lines) if one is not None}
    results: list[ProbeResult] = []
    for attempt in ATTEMPTS:
        line = reported.get(attempt.name)
        shown = _find_evidence(attempt, line, canaries)
        if line is None and not shown:
            if canaries.is_missing(attempt.name):
                results.append(ProbeResult(attempt, None, "there is nothing here to try it on", is_tried=False))
            else:
                results.append(ProbeResult(attempt, None, "no answer"))
            continue
        claim = line or ProbeLine(attempt.name, False, "")
        if claim.succeeded is None and not shown:
            results.append(ProbeResult(attempt, None, claim.detail, is_tried=False))
        elif shown is None:
            results.append(ProbeResult(attempt, claim.succeeded, claim.detail))
        else:
            idle = " (without effect outside)" if claim.succeeded and not shown else ""
            results.append(ProbeResult(attempt, shown, claim.detail + idle))
    return results


def decode_line(line: str) -> ProbeLine | None:
    """None: the intruder did not print it."""
    try:
        return msgspec.json.decode(line, type=ProbeLine)
    except msgspec.MsgspecError:
        return None


def _find_evidence(attempt: Attempt, line: ProbeLine | None, canaries: Canaries) -> bool | None:
    """Whether something outside shows that it succeeded; None: nothing could."""
    match attempt.evidence:
        case "word":
            return None
        case "secret":
            return line is not None and canaries.is_secret_in(line.detail)
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
