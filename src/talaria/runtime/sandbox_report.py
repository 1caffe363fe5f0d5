"""`/sandbox`: how commands are confined here, what was allowed and blocked, and how to revoke a permission."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from talaria.core.errors import BadInput
from talaria.core.ids import SessionId
from talaria.core.text import show_size
from talaria.store.permission_ports import Grant, Grants
from talaria.tools.gate import ANYTHING, READING
from talaria.tools.policy import EVERYTHING_BELOW
from talaria.tools.sandbox.base import Level
from talaria.tools.sandbox_permissions import EVERYWHERE, SANDBOX, read_grant
from talaria.tools.workspaces import SandboxState

ID_CHARS = 8
MOST_NAMED = 3
"""Of each kind; `/sandbox all` names every one."""
MAX_WHAT_CHARS = 100
LEAST_CACHE_BYTES = 1 << 20
"""Smaller caches count as unused and are not named."""
NO_BUBBLEWRAP = (
    "At this level there is no network, no service of this machine and no multiprocessing, and none can be allowed. "
    "With bubblewrap there is: install it (apt install bubblewrap, dnf install bubblewrap) and start again."
)
_OPEN: dict[Level, str] = {
    "none": "Commands are not confined: they can do whatever you can, so you are asked about each one.",
    "remote": "Commands run on that machine with all rights of the account there, so you are asked about each one.",
    "container": "Commands reach what the container does: the project, and what terminal.docker gives it. Nothing more "
    "can be allowed while it runs.",
}
"""Levels at which nothing can be allowed."""


async def describe_sandbox(
    state: SandboxState, grants: Grants, session: SessionId, now: float, person: str | None, *, is_whole: bool
) -> str:
    """For people. `person`: whose grants are shown; None: everybody's. With `is_whole`, no list is shortened."""
    valid = [
        grant
        for grant in await _grants_of(grants, person)
        if (grant.session == session if grant.session is not None else grant.cwd in (str(state.project), EVERYWHERE))
    ]
    shown, whole = ("\n".join(_lines(state, valid, now, most, whose=person)) for most in (MOST_NAMED, None))
    hints = ["/sandbox revoke ID takes a permission back."] if valid else []
    hints += ["/sandbox all shows everything."] if shown != whole and not is_whole else []
    return "\n".join(filter(None, (whole if is_whole else shown, " ".join(hints))))


async def revoke_grant(grants: Grants, begun: str, person: str | None) -> Grant:
    """By the beginning of its id. `person`: only theirs; None: anybody's. Raises `BadInput`."""
    fitting = [grant for grant in await _grants_of(grants, person) if begun and grant.id.startswith(begun)]
    if len(fitting) != 1:
        found = "More than one permission has an id that begins" if fitting else "No permission of yours has an id"
        how = f" with {begun!r}" if fitting else f" {begun!r}"
        raise BadInput(f"{found}{how}; /sandbox lists them.")
    await grants.revoke(fitting[0].id)
    return fitting[0]


def describe_grant(grant: Grant) -> str:
    """What it allows, as an infinitive on one line."""
    if grant.tool == SANDBOX:
        permission = read_grant(grant.what)
        return (permission.description if permission is not None else grant.what).replace("\n", "\\n")
    if grant.tool == READING:
        inside = grant.what.removesuffix(EVERYTHING_BELOW).replace("\n", "\\n")
        return f"read everything in {inside}" if grant.what.endswith(EVERYTHING_BELOW) else f"read {inside}"
    if grant.what.startswith(ANYTHING):
        return f"call {grant.tool} for anything{grant.what.removeprefix(ANYTHING)}"
    what = " ".join(grant.what.split())
    return f"call {grant.tool}: {what[:MAX_WHAT_CHARS]}{'…' * (len(what) > MAX_WHAT_CHARS)}"


def place_of(grant: Grant) -> str:
    """Where it applies."""
    if grant.session is not None:
        return "in this conversation"
    return "in every project" if grant.cwd == EVERYWHERE and grant.tool == SANDBOX else f"in {grant.cwd}"


async def _grants_of(grants: Grants, person: str | None) -> list[Grant]:
    return [grant for grant in await grants.list() if person in (None, grant.person)]


def _lines(
    state: SandboxState, grants: Sequence[Grant], now: float, most: int | None, *, whose: str | None
) -> Iterator[str]:
    yield f"Sandbox: {state.level} ({state.about})"
    if state.level in _OPEN:
        yield _OPEN[state.level]
    else:
        yield from _describe_reach(state, most)
        if state.level == "landlock":
            yield NO_BUBBLEWRAP
    if grants:
        yield "Allowed:"
        for grant in grants:
            by = f", by {grant.person}" if whose is None and grant.person != "local" else ""
            here = "in this project" if grant.session is None and grant.cwd == str(state.project) else place_of(grant)
            what = _with_home(describe_grant(grant), state.home)
            yield f"- {grant.id[:ID_CHARS]}: {what} ({here}, {_age(now - grant.created_at)}{by})"
    elif state.level not in _OPEN:
        yield "Nothing else was allowed."
    blocked = [*dict.fromkeys(state.blocked)]
    probably = [_with_home(one, state.home) for one in dict.fromkeys(state.probably_blocked)]
    if blocked:
        yield f"Recently blocked: {_join_names(blocked[::-1], most)}"
    if probably:
        yield f"Probably blocked: {_join_names(probably[::-1], most)}"


def _describe_reach(state: SandboxState, most: int | None) -> Iterator[str]:
    def paths(some: Sequence[Path]) -> list[str]:
        return [_with_home(str(path), state.home) for path in some]

    def join_some(some: Sequence[str]) -> str:
        return _join_names(some, most)

    places = (state.project, *state.writes, *state.opened)
    yield f"Commands can write: {join_some(paths(places))}, and a /tmp of their own"
    readable = ["the programs of the system", *paths(state.reads)]
    yield f"They can also read: {join_some(readable)}"
    if state.toolchains:
        yield f"Toolchains: {join_some(paths(state.toolchains))}"
    if state.level != "landlock":
        yield f"Hosts allowed without asking: {join_some(state.hosts) if state.hosts else 'none'}"
    if state.ports:
        yield f"Ports of this machine: {join_some([*map(str, state.ports)])}"
    if state.sockets:
        yield f"Sockets of this machine: {join_some(paths(state.sockets))}"
    if state.published:
        links = [f"port {port} at http://127.0.0.1:{outside}/" for port, outside in state.published.items()]
        yield f"Open on this machine: {', '.join(links)}"
    if state.variables:
        unset = [f"{name} (not set)" if name in state.unset else name for name in state.variables]
        yield f"Variables: {join_some(unset)}"
    if state.cache_limit:
        total = sum(state.caches.values())
        largest = sorted((one for one in state.caches.items() if one[1] >= LEAST_CACHE_BYTES), key=lambda one: -one[1])
        parts = _join_names([f"{name} {show_size(size)}" for name, size in largest], most)
        used = (
            f"{show_size(total)} of {show_size(state.cache_limit)}"
            if total
            else f"up to {show_size(state.cache_limit)}"
        )
        yield f"Package caches: {used}{f' ({parts})' if parts else ''}, for this project only"


def _join_names(some: Sequence[str], most: int | None) -> str:
    shown = some if most is None or len(some) <= most + 1 else some[:most]
    more = f" and {len(some) - len(shown)} more" if len(shown) < len(some) else ""
    return f"{', '.join(shown)}{more}"


def _with_home(text: str, home: Path) -> str:
    return text.replace(f"{home}/", "~/") if home != Path("/") else text


def _age(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"
