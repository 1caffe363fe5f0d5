"""Decides what is allowed, asked about or denied, by tool, path, host and command. It asks nobody.

The floor comes first and nothing lifts it; then what the person has denied; then the built-in reasons to ask, which
the person's own rules can remove.
"""

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from talaria.tools import shell_words
from talaria.tools.base import Claim
from talaria.tools.hosts import host_matches
from talaria.tools.protected import Protected
from talaria.tools.repositories import find_enclosing_repository
from talaria.tools.sandbox_permissions import Permission

Decision = Literal["allow", "ask", "deny"]
GrantDuration = Literal["once", "session", "project", "always"]

_RULE = re.compile(r"(?P<tool>[\w*?-]+)(?:\((?P<what>.*)\))?", re.DOTALL)


class ApprovalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    mode: Literal["manual", "off"] | bool = "manual"
    """`off`: nobody is asked, and calls that would need a question go ahead. The sandbox and what is always refused
    stay.

    YAML reads a bare `off` as a boolean.
    """
    timeout_s: Annotated[int, msgspec.Meta(ge=1)] = 600
    """How long a question waits. No answer means no."""
    allow: tuple[str, ...] = ()
    """Calls that are not asked about, such as `write_file(~/notes/**)` or `mcp_tracker_*`. They do not open the
    sandbox; where commands run without one, `terminal(git push *)` is possible, too."""
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    @property
    def is_asking(self) -> bool:
        return self.mode not in ("off", False)

    def __post_init__(self) -> None:
        for rule in (*self.allow, *self.ask, *self.deny):
            if not _RULE.fullmatch(rule.strip()):
                raise ValueError(f"{rule!r} is not a rule: expected tool, or tool(path, host or command)")


class PolicyRequest(msgspec.Struct, frozen=True):
    tool: str
    claim: Claim
    project: Path
    is_tainted: bool = False
    """The model has seen content from strangers in this turn."""
    has_private_data: bool = False
    """The model has seen files from outside the project in this conversation."""
    spill: Path | None = None
    """Where the session's own output is."""
    named_paths: tuple[Path, ...] = ()
    """Files and folders that the person named in this conversation."""


class Verdict(msgspec.Struct, frozen=True):
    decision: Decision
    reason: str = ""
    """Why it is asked about or denied; the rest of a sentence."""
    longest: GrantDuration = "always"
    """How long a yes may hold."""
    kind: Literal["reading", "revealing", "deleting", "opening", "other"] = "other"
    """What a yes allows: reading outside the project, a way out for private data, deleting what cannot be restored,
    opening the sandbox, or anything else."""
    covers: str = ""
    """For reading: what a lasting yes covers, a file, or a folder and everything in it (`/**`)."""
    remedy: str = ""
    """What the person can set to avoid the question; a sentence."""
    may_be_granted: bool = True
    """Whether an earlier yes counts."""


class _Doubt(msgspec.Struct, frozen=True):
    reason: str
    kind: Literal["reading", "revealing", "deleting", "other"] = "other"


ALLOWED = Verdict("allow")
_WHY_CLOSED: dict[str, str] = {
    "network": "commands reach only hosts that you allow",
    "write": "commands change only the project and folders that you allow",
    "port": "commands reach only services of this machine that you allow",
    "socket": "commands reach only services of this machine that you allow, and this one would mistake them for you",
    "publish": "a server in the sandbox is reached from outside only if you allow it",
    "unsandboxed": "nothing would restrict it",
    "git-url": "git would push and fetch there from now on, also outside the sandbox",
    "fetch": "the server would know you by your login; commands never see it",
    "push": "others will see it as yours",
    "sign": "others will take it as yours",
    "gh": "the server would know you by your login; commands never see it",
}
_REMEDIES: dict[str, str] = {
    kind: f"To allow it beforehand, the person can add it to `terminal.{name}` in config.yaml, or for one project with "
    f"`talaria config set --project terminal.{name} …`."
    for kind, name in (("network", "network"), ("write", "write"), ("port", "ports"))
}
EVERYTHING_BELOW = "/**"
"""After a folder: everything in it."""


class Policy:
    def __init__(
        self,
        settings: ApprovalSettings,
        protected: Protected,
        created_here: Callable[[Path], bool] = lambda _: False,
    ) -> None:
        """`created_here`: whether this conversation has created a file; it may delete such a file unasked. The function
        may look at the disk."""
        self._settings = settings
        self._protected = protected
        self._created_here = created_here

    def decide(self, request: PolicyRequest) -> Verdict:
        if (reason := self._check_floor(request)) is not None:
            return Verdict("deny", reason)
        settings = self._settings
        if any(_rule_matches(rule, request, is_allowing=False) for rule in settings.deny):
            return Verdict("deny", "it is forbidden here")
        if request.claim.permission is not None:  # rules about tools do not open the sandbox
            return self._decide_opening(request, request.claim.permission)
        doubt = self._find_deletion_doubt(request) or next(self._find_doubts(request), None)
        is_to_be_asked = any(_rule_matches(rule, request, is_allowing=False) for rule in settings.ask)
        if is_to_be_asked and (doubt is None or doubt.kind == "other"):
            return Verdict("ask", "a rule says to ask about it", _longest_answer(request))
        is_allowed = any(_rule_matches(rule, request, is_allowing=True) for rule in settings.allow)
        if doubt is None or (is_allowed and not is_to_be_asked):
            return ALLOWED
        if doubt.kind == "reading":
            # A yes may cover the folder, but never one that holds a whole home; for a file right in there only the
            # file. Reading changes nothing, and what was read leaves only if a person says so. So a yes may last even
            # after content from strangers was read, unless the call itself could take along what it reads.
            claim = request.claim
            read, folder = claim.reads[0], claim.folder or claim.reads[0].parent
            is_shared = self._protected.may_be_shared(folder)
            may_last = (is_shared or folder != read) and not claim.can_exfiltrate
            covers = f"{folder}{EVERYTHING_BELOW}" if is_shared else str(read)
            remedy = (
                "To allow it beforehand, the person can list the folder as `terminal.read` in config.yaml, or add the "
                f"rule `{request.tool}({covers})` to `approvals.allow` there."
            )
            longest: GrantDuration = "once" if not may_last else "session" if request.is_tainted else "always"
            return Verdict("ask", doubt.reason, longest, "reading", covers, remedy)
        if doubt.kind == "deleting":
            is_revealing = request.has_private_data and request.claim.can_exfiltrate
            return Verdict("ask", doubt.reason, "once" if request.is_tainted or is_revealing else "session", "deleting")
        return Verdict("ask", doubt.reason, _longest_answer(request), doubt.kind)

    @staticmethod
    def looks_at_files(claim: Claim) -> bool:
        """Whether deciding about such a call needs the disk: then not on the loop."""
        return bool(claim.writes) or (
            claim.command is not None and shell_words.may_delete(claim.command, claim.workdir)
        )

    def _find_deletion_doubt(self, request: PolicyRequest) -> _Doubt | None:
        """Includes any other doubt about the same call: a yes to the deletion is a yes to all of it."""
        claim = request.claim
        if claim.command is None or not shell_words.may_delete(claim.command, claim.workdir):
            return None
        from talaria.tools.deletions import find_losses  # noqa: PLC0415  (most conversations delete nothing)

        # commands can write the whole repository around the project
        around = find_enclosing_repository(request.project, self._protected.may_be_shared)
        project = around.root if around is not None else request.project
        reason = find_losses(
            claim.command, claim.language, claim.workdir, project, self._protected.person, self._created_here
        )
        if reason is None:
            return None
        others = (doubt.reason for doubt in self._find_doubts(request))
        return _Doubt("; ".join((reason, *others)), "deleting")

    def _decide_opening(self, request: PolicyRequest, permission: Permission) -> Verdict:
        """Once content from strangers was read, no new yes lasts; once private data was read, an earlier yes does not
        count either where the data could leave."""
        leaves = permission.kind not in ("write", "publish")
        reasons = [_WHY_CLOSED.get(permission.kind, "commands reach nothing outside the sandbox unless you allow it")]
        if request.has_private_data and leaves:
            reasons.append("files from outside the project were read in this conversation, and could be sent there")
        if request.is_tainted:
            reasons.append("this turn has read content from strangers, who may have asked for it")
        deletion = self._find_deletion_doubt(request) if permission.kind == "unsandboxed" else None
        if deletion is not None:
            reasons.append(deletion.reason)
        is_beside = permission.kind == "unsandboxed" and request.claim.runs_beside_others
        if is_beside:
            reasons.append("commands run in the background, and could change the files that it uses")
        is_for_once = request.is_tainted or request.has_private_data or deletion is not None or not permission.may_last
        if request.is_tainted or request.has_private_data:
            reasons.append("so a yes holds only this once")
        elif not permission.may_last and permission.kind == "unsandboxed":
            reasons.append("others that begin like it could run anything, so a yes covers only this exact command")
        is_risky = permission.kind == "unsandboxed" and (request.is_tainted or is_beside or deletion is not None)
        may_be_granted = not is_risky and not (request.has_private_data and leaves)
        longest: GrantDuration = "once" if is_for_once else "always"
        remedy = _REMEDIES.get(permission.kind, "")
        return Verdict("ask", "; ".join(reasons), longest, "opening", remedy=remedy, may_be_granted=may_be_granted)

    def is_private(self, path: Path, project: Path) -> bool:
        """Whether others should not learn what it holds."""
        return self._protected.is_private(path, project)

    def _check_floor(self, request: PolicyRequest) -> str | None:
        claim = request.claim
        for path in (*claim.reads, *claim.writes):
            if self._protected.is_secret(path, request.spill):
                return f"{path} is private"
            if self._protected.belongs_to_another(path, request.project):
                return f"{path} belongs to somebody else"
        if any(self._protected.is_talaria_home(path) for path in claim.writes):
            return "tools may not change it"
        if (
            claim.command is not None
            and not claim.is_confined
            and shell_words.is_destructive(claim.command, self._protected)
        ):
            return "this is never allowed"
        return None

    def _find_doubts(self, request: PolicyRequest) -> Iterator[_Doubt]:
        """Reasons to ask, the most important first."""
        claim = request.claim
        for path in claim.writes:
            if self._protected.is_policy(path, request.project):
                yield _Doubt(f"other programs obey {path} without asking")
        for path in claim.reads:
            named = (place for place in request.named_paths if path.is_relative_to(place))
            is_named = any(map(self._protected.may_be_shared, named))  # the person named it, or a folder around it
            if self._protected.is_private(path, request.project) and not is_named:
                yield _Doubt(f"{path} is outside the project", "reading")
        if claim.can_exfiltrate and request.has_private_data:
            how = "it can send information to others" if claim.is_confined else "it runs outside of any sandbox"
            yield _Doubt(f"{how}, and files from outside the project were read in this conversation", "revealing")
        if not claim.is_confined:
            yield _Doubt("it runs outside of any sandbox")
        for path in claim.writes:
            if not path.is_relative_to(request.project):
                yield _Doubt(f"{path} is outside the project")
        if claim.sends and request.is_tainted:
            yield _Doubt("it sends something to others after content from strangers was read")


def _longest_answer(request: PolicyRequest) -> GrantDuration:
    """Permanent only for what is the same each time: not for what strangers may have asked for or a script may hide."""
    if request.has_private_data and request.claim.can_exfiltrate:
        is_acting = request.claim.sends or not request.claim.is_confined
        return "once" if request.is_tainted and is_acting else "session"
    if request.is_tainted:
        return "once"
    command = request.claim.command
    return "always" if command is None or shell_words.is_harmless(command) else "session"


def _rule_matches(rule: str, request: PolicyRequest, *, is_allowing: bool) -> bool:
    """Whether a rule applies to a call: to everything that it touches if the rule allows, to any of it otherwise."""
    parsed = _RULE.fullmatch(rule.strip())
    if parsed is None or not fnmatchcase(request.tool, parsed["tool"]):
        return False
    what = parsed["what"]
    if what is None or what.strip() == "*":
        return True
    claim = request.claim
    if claim.command is not None:
        return shell_words.matches_rule(claim.command, what, is_allowing=is_allowing)
    if paths := (*claim.reads, *claim.writes):
        # `**` stands for any number of folders, `*` for a part of one name.
        parts: list[str] = re.split(r"(/\*\*(?=/|$)|\*|\?)", str(request.project / Path(what).expanduser()))
        words = {"/**": "(?:/.*)?", "*": "[^/]*", "?": "[^/]"}
        expression = re.compile("".join(words.get(part, re.escape(part)) for part in parts), re.DOTALL)
        touched = [expression.fullmatch(str(path)) is not None for path in paths]
    else:
        touched = [host_matches(host, what) for host in claim.hosts]
    return bool(touched) and (all(touched) if is_allowing else any(touched))
