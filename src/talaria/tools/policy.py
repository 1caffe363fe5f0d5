"""What is allowed, asked about or denied: by tool, path, host and command. Decides; asks nobody.

The floor comes first and nothing lifts it; then what the person denied; then the standing reasons to ask, which the
person's own rules can take away.
"""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from talaria.tools import shell_words
from talaria.tools.base import Claim
from talaria.tools.hosts import is_covered
from talaria.tools.protected import Protected

Decision = Literal["allow", "ask", "deny"]
Lasting = Literal["once", "session", "always"]

_RULE = re.compile(r"(?P<tool>[\w*?-]+)(?:\((?P<what>.*)\))?", re.DOTALL)


class ApprovalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    mode: Literal["manual", "off"] | bool = "manual"
    """`off`: nobody is asked, what would be asked about is done. The sandbox and what is always refused stay.

    A bare `off` is no word to YAML, but a truth value.
    """
    timeout_s: Annotated[int, msgspec.Meta(ge=1)] = 600
    """How long a question waits for its answer, which is then no."""
    allow: tuple[str, ...] = ()
    """Calls that are not asked about, such as `terminal(git push *)`, `write_file(~/notes/**)`, `mcp_tracker_*`."""
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    @property
    def is_asking(self) -> bool:
        return self.mode not in ("off", False)

    def __post_init__(self) -> None:
        for rule in (*self.allow, *self.ask, *self.deny):
            if not _RULE.fullmatch(rule.strip()):
                raise ValueError(f"{rule!r} is no rule: expected tool, or tool(path, host or command)")


class Request(msgspec.Struct, frozen=True):
    tool: str
    claim: Claim
    project: Path
    is_tainted: bool = False
    """What strangers have written is before the model in this turn."""
    is_privy: bool = False
    """So is what the person keeps outside of the project."""
    spill: Path | None = None
    """Where the session's own output is."""


class Verdict(msgspec.Struct, frozen=True):
    decision: Decision
    reason: str = ""
    """Why it is asked or denied; the rest of a sentence."""
    longest: Lasting = "always"
    """How long a yes may hold."""


ALLOWED = Verdict("allow")


class Policy:
    def __init__(self, settings: ApprovalSettings, protected: Protected) -> None:
        self._settings = settings
        self._protected = protected

    def decide(self, request: Request) -> Verdict:
        if (reason := self._floor(request)) is not None:
            return Verdict("deny", reason)
        settings = self._settings
        if any(_covers(rule, request, is_allowing=False) for rule in settings.deny):
            return Verdict("deny", "it is forbidden here")
        if any(_covers(rule, request, is_allowing=False) for rule in settings.ask):
            return Verdict("ask", "it is to be asked about", _longest(request))
        reason = next(self._doubts(request), None)
        if reason is None or any(_covers(rule, request, is_allowing=True) for rule in settings.allow):
            return ALLOWED
        return Verdict("ask", reason, _longest(request))

    def is_private(self, path: Path, project: Path) -> bool:
        """Whoever is told what it holds may be told too much."""
        return self._protected.is_private(path, project)

    def _floor(self, request: Request) -> str | None:
        claim = request.claim
        for path in (*claim.reads, *claim.writes):
            if self._protected.is_secret(path, request.spill):
                return f"{path} is private"
            if self._protected.is_anothers(path, request.project):
                return f"{path} is somebody else's"
        if any(self._protected.is_own(path) for path in claim.writes):
            return "no tool changes that"
        if (
            claim.command is not None
            and not claim.is_confined
            and shell_words.is_ruinous(claim.command, self._protected)
        ):
            return "this is never done"
        return None

    def _doubts(self, request: Request) -> Iterator[str]:
        """Reasons to ask, the weightiest first."""
        claim = request.claim
        for path in claim.writes:
            if self._protected.is_policy(path, request.project):
                yield f"{path} is obeyed by other programs, which ask nobody"
        if not claim.is_confined:
            yield "it runs outside of any sandbox"
        for path in claim.writes:
            if not path.is_relative_to(request.project):
                yield f"{path} is outside the project"
        if claim.sends and request.is_tainted:
            yield "it tells others something, after content from strangers was read"
        if claim.hosts and request.is_privy:
            yield "an address can tell others something, after files outside of the project were read"


def _longest(request: Request) -> Lasting:
    """A yes for good only to what is the same again: not to what strangers may have asked for, or a script may hide."""
    if request.is_privy and request.claim.hosts and not request.claim.sends:
        return "session"  # of one host
    if request.is_tainted:
        return "once"
    command = request.claim.command
    return "always" if command is None or shell_words.is_harmless(command) else "session"


def _covers(rule: str, request: Request, *, is_allowing: bool) -> bool:
    """Whether a rule speaks of a call: of all that it touches, if it allows; of any of it, if not."""
    parsed = _RULE.fullmatch(rule.strip())
    if parsed is None or not fnmatchcase(request.tool, parsed["tool"]):
        return False
    what = parsed["what"]
    if what is None or what.strip() == "*":
        return True
    judge = all if is_allowing else any
    claim = request.claim
    if claim.command is not None:
        return shell_words.matches(claim.command, what, is_allowing=is_allowing)
    paths = (*claim.reads, *claim.writes)
    touched = (
        [_is_in(path, what, request.project) for path in paths]
        if paths
        else [is_covered(one, what) for one in claim.hosts]
    )
    return bool(touched) and judge(touched)


def _is_in(path: Path, pattern: str, project: Path) -> bool:
    """`**` stands for any number of folders, `*` for a part of one name."""
    given = Path(pattern).expanduser()
    whole = given if given.is_absolute() else project / given
    return _as_expression(whole).fullmatch(str(path)) is not None


def _as_expression(pattern: Path) -> re.Pattern[str]:
    parts: Sequence[str] = re.split(r"(/\*\*(?=/|$)|\*|\?)", str(pattern))
    words = {"/**": "(?:/.*)?", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts), re.DOTALL)
