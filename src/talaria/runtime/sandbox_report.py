"""`/sandbox`: how commands are confined here, what was allowed and blocked, and taking a yes back."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from talaria.model.errors import BadInput
from talaria.model.ids import SessionId
from talaria.store.permissions import Grant, Grants
from talaria.tools.permissions import EVERYWHERE, SANDBOX

ID_CHARS = 8


class SandboxState(msgspec.Struct, frozen=True):
    """Of the commands of one conversation."""

    level: str
    about: str
    project: Path
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()
    """Listed in the settings."""
    blocked: tuple[str, ...] = ()
    """Hosts that were lately asked for in vain; the latest last."""


async def describe_sandbox(state: SandboxState, grants: Grants, session: SessionId) -> str:
    """For a person, line by line."""
    valid = [grant for grant in await grants.list() if _is_for(grant, state.project, session)]
    return "\n".join(_lines(state, valid))


async def revoke_grant(grants: Grants, begun: str) -> str:
    """By the beginning of its id. Raises `BadInput`."""
    fitting = [grant for grant in await grants.list() if begun and grant.id.startswith(begun)]
    if len(fitting) != 1:
        raise BadInput(f"{begun!r} is the id of {'several grants' if fitting else 'no grant'}; /sandbox lists them.")
    await grants.revoke(fitting[0].id)
    return f"Revoked: {describe_grant(fitting[0])}. It will be asked about again."


def describe_grant(grant: Grant) -> str:
    what = grant.what if grant.tool == SANDBOX else f"{grant.tool}: {' '.join(grant.what.split())[:100]}"
    what = what.replace("\n", "\\n")  # a folder may be called anything: none of it begins a line
    if grant.session is not None:
        where = "in this conversation"
    else:
        where = "in every project" if grant.cwd == EVERYWHERE else f"in {grant.cwd}"
    person = "" if grant.person == "local" else f", allowed by {grant.person}"
    return f"{what} ({where}{person})"


def _is_for(grant: Grant, project: Path, session: SessionId) -> bool:
    return grant.session == session if grant.session is not None else grant.cwd in (str(project), EVERYWHERE)


def _lines(state: SandboxState, grants: Sequence[Grant]) -> Iterator[str]:
    yield f"Sandbox: {state.level} ({state.about})"
    if state.level in ("none", "remote"):
        yield "Commands are not confined, so each one is asked about."
    else:
        yield f"Commands can write: {', '.join(map(str, (state.project, *state.writes)))}, /tmp"
        yield f"Commands can read: {', '.join((*map(str, state.reads), 'the programs of the system'))}"
        yield f"Hosts listed in terminal.network: {', '.join(state.hosts) or 'none'}"
    if grants:
        yield "Allowed:"
        yield from (f"  {grant.id[:ID_CHARS]}  {describe_grant(grant)}" for grant in grants)
        yield "Revoke one with /sandbox revoke ID."
    else:
        yield "Nothing more was allowed."
    if state.blocked:
        yield f"Blocked lately: {', '.join(dict.fromkeys(state.blocked))}"
