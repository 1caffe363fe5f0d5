"""What commands of a conversation can reach at this moment: by the level, the settings, and what was opened."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.core.ids import SessionId
from talaria.tools.sandbox.base import Level
from talaria.tools.sandbox.sandbox_settings import project_folder

if TYPE_CHECKING:
    from talaria.tools.workspaces import Workspaces


class SandboxState(msgspec.Struct, frozen=True, kw_only=True):
    """Of the commands of one conversation. Paths are as they really are."""

    level: Level
    about: str
    project: Path
    home: Path
    """Of the person; `~` in what is shown."""
    writes: tuple[Path, ...] = ()
    """Besides the project: its repository, and what the settings list."""
    opened: tuple[Path, ...] = ()
    """What commands can also write now, because somebody said yes."""
    reads: tuple[Path, ...] = ()
    """Listed in the settings."""
    toolchains: tuple[Path, ...] = ()
    variables: tuple[str, ...] = ()
    """Names that are listed in `terminal.env`."""
    unset: tuple[str, ...] = ()
    """Those of them that have no value."""
    caches: Mapping[str, int] = {}
    """In bytes, as they were measured last."""
    cache_limit: int = 0
    hosts: tuple[str, ...] = ()
    """Listed in the settings."""
    ports: tuple[int, ...] = ()
    """Of this machine, which commands reach."""
    published: Mapping[int, int] = {}
    """By ports of the sandbox, those of this machine where they are reached."""
    blocked: tuple[str, ...] = ()
    """Hosts that were lately asked for in vain; the latest last."""
    probably_blocked: tuple[str, ...] = ()
    """Paths and ports: the kernel does not tell, so this is read from what programs said."""


def find_state(workspaces: "Workspaces", home: Path, session: SessionId, project: Path) -> SandboxState:
    """`home` is Talaria's. Not on the loop. Raises `ToolFailed` where no command could run."""
    sandbox, settings = workspaces.sandbox, workspaces.settings_in(session, project)
    view, workspace = workspaces.look(project.resolve(), settings), workspaces.find(session)
    listed = [Path(given).expanduser().resolve() for given in settings.read]
    ports = workspace.ports if workspace is not None else None
    sizes: Mapping[str, int] = {}
    if settings.cache_gb and sandbox.level in ("strict", "landlock", "seatbelt"):
        from talaria.tools.sandbox.caches import read_sizes  # noqa: PLC0415  (only for whoever runs commands)

        sizes = read_sizes(project_folder(home.resolve(), view.project))
    return SandboxState(
        level=sandbox.level,
        about=sandbox.about,
        project=view.project,
        home=view.home,
        writes=view.writes,
        opened=workspace.shared if workspace is not None else (),
        reads=tuple(path for path in view.reads if path in listed),
        toolchains=tuple(path for path in view.reads if path not in listed),
        variables=settings.env,
        unset=tuple(name for name in settings.env if name not in os.environ),
        caches=sizes,
        cache_limit=int(settings.cache_gb * (1 << 30)),
        hosts=settings.network,
        ports=tuple(ports.open_inwards) if ports is not None and ports.open_inwards else settings.ports,
        published=ports.published if ports is not None else {},
        blocked=tuple(workspace.way_out.blocked) if workspace is not None else (),
        probably_blocked=tuple(workspace.consent.blocked) if workspace is not None else (),
    )
