"""What the commands of a session see of this machine."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from talaria.core.errors import ToolFailed
from talaria.core.trees import Root
from talaria.tools.protected import TOOLCHAINS, Protected
from talaria.tools.repositories import EnclosingRepository, find_enclosing_repository, resolve_inside
from talaria.tools.sandbox.base import SandboxLimits, SandboxPolicy
from talaria.tools.sandbox.inside import find_guardable, fit_mounts, outermost, scan_project
from talaria.tools.sandbox.sandbox_settings import TerminalSettings, select_variables
from talaria.tools.sandbox.system import interpreter, own_code, system
from talaria.tools.sandbox.toolchains import find_toolchains

GIT_S = 2.0
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
"""Where the programs are that we run ourselves: a project may contain others of the same name."""
NEVER = tuple(map(Path, ("/proc", "/sys", "/dev/pts", "/run", "/boot", "/etc")))
_SYSTEM_FOLDERS = frozenset(map(Path, ("/", "/usr", "/opt", "/var", "/dev", "/bin", "/sbin", "/lib", "/lib64", "/nix")))
_SHARED_BY_ALL = frozenset(map(Path, ("/home", "/tmp", "/var/tmp", "/srv", "/mnt", "/media", "/Users")))  # noqa: S108
PASSED_ON = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ"})
"""Variables that commands get, with LC_*: none of them is a secret."""


def view_of(
    project: Path,
    home: Path,
    settings: TerminalSettings,
    environment: Mapping[str, str],
    limits: SandboxLimits | None = None,
    programs: Sequence[Path] = (),
    people: Path | None = None,
    shared: Sequence[Path] = (),
) -> SandboxPolicy:
    """`home` is Talaria's own, which commands never see; `programs` cannot be changed. `people`: the folder in which
    everyone in chats has a folder. `shared`: more that is writable, except what has become a link or has gone.

    Raises `ToolFailed` if commands must not work in this project.
    """
    person = Path.home().resolve()
    if project in _SYSTEM_FOLDERS or any(project.is_relative_to(place) for place in NEVER):
        raise ToolFailed(f"Commands do not run in {project}: it belongs to the system and is not a project.")
    if person.is_relative_to(project) and person != project:
        raise ToolFailed(f"Commands do not run in {project}: it contains all of {person} and is not a project.")
    if project.is_relative_to(home):
        raise ToolFailed(f"Commands do not run in {project}: it belongs to Talaria itself.")
    protected = Protected(person, home, programs=programs)
    if protected.is_secret(project):
        raise ToolFailed(f"Commands do not run in {project}: it is private.")
    _check_listed(settings, home, person)
    repository = _enclosing(project, home, protected, people)
    root = repository.root if repository is not None and repository.root != project else None
    git_folders = repository.folders if repository is not None else ()
    opened = (place for place in shared if place.exists() and place.resolve() == place)
    given = (*_existing(settings.write, protected), *opened)
    writable = tuple(dict.fromkeys((*((root,) if root else ()), *git_folders, *given)))
    listed = (*_toolchains(person), *_existing(settings.read, protected))
    around = (project, *writable, *listed, *map(Path, system()), *interpreter())
    toolchains = find_toolchains(environment, person, around, protected)
    readable = (*listed, *toolchains.reads)
    inside = scan_project(project, writable)
    top = root or project
    roots = tuple(dict.fromkeys((top, *writable)))
    policy = chain.from_iterable(map(protected.policy_below, roots))

    def is_compared(place: Path) -> bool:
        return any(place.is_relative_to(folder) for folder in (top, *git_folders))

    leading = (place for place in inside.missing if place.name == "commondir" and is_compared(place))
    missing = (*leading, *protected.missing_below(top))
    shown = (*around, *toolchains.reads)
    return SandboxPolicy(
        project=project,
        root=root,
        git_folders=git_folders,
        writes=writable,
        reads=readable,
        guarded=fit_mounts(roots, (*find_guardable(roots, policy), *inside.policy)),
        own=tuple(place for place in own_code() if any(_overlap(place, root) for root in roots)),
        hidden=outermost((*_secrets_in(shown, protected), *inside.sockets)),
        home=person,
        binds=toolchains.binds,
        environment={
            **filter_environment(environment),
            **toolchains.variables,
            **select_variables(settings.env, environment),
            "PATH": toolchains.path,
        },
        has_egress=bool(settings.network),
        limits=limits or settings.sandbox_limits,
        unwanted=tuple(real for place in missing if (real := resolve_inside(place, (top, *git_folders)))),
    )


def _check_listed(settings: TerminalSettings, home: Path, person: Path) -> None:
    """Raises `ToolFailed` for folders that cannot be shown to commands, or never are."""
    for name, paths in (("read", settings.read), ("write", settings.write)):
        for given in paths:
            path = Path(given).expanduser().resolve()
            if path.is_relative_to(home):
                fault = "which belongs to Talaria itself: take it off the list"
            elif person.is_relative_to(path) and path != person:
                fault = f"which contains all of {person}: list smaller folders"
            else:
                continue
            raise ToolFailed(f"Commands do not run: terminal.{name} lists {given}, {fault}.")


def _enclosing(project: Path, home: Path, protected: Protected, people: Path | None) -> EnclosingRepository | None:
    """The repository around the project, unless it contains the person's home or Talaria's, somebody else's folder, or
    anything private."""
    kept = (protected.person, home, *((people,) if people is not None else ()))

    def is_allowed(folder: Path) -> bool:
        if folder in _SYSTEM_FOLDERS or folder in _SHARED_BY_ALL or any(folder.is_relative_to(one) for one in NEVER):
            return False
        if any(one.is_relative_to(folder) for one in kept) or folder.is_relative_to(home):
            return False
        return not protected.is_secret(folder) and next(protected.secrets_below(folder), None) is None

    if project == protected.person:
        return None
    return find_enclosing_repository(project, is_allowed)


def program_view(
    own: Path,
    home: Path,
    protected: Protected,
    *,
    programs: Sequence[Path],
    reads: Sequence[Path],
    writes: Sequence[Path],
    environment: Mapping[str, str],
    has_egress: bool,
    limits: SandboxLimits,
) -> SandboxPolicy:
    """For one program that is not a command of a session. `own` is its folder, which is kept; `home` is Talaria's.
    `reads` and `writes` exist and are resolved. `programs` are readable, too, but not searched for sockets.

    Raises `ToolFailed` if one of these folders contains too much.
    """
    person = Path.home().resolve()
    for place in (*programs, *reads, *writes):
        if place.is_relative_to(home):
            raise ToolFailed(f"{place} cannot be given to it, because it belongs to Talaria")
        for kept in (home, person):
            if kept.is_relative_to(place):
                raise ToolFailed(f"{place} cannot be given to it, because {kept} is in it; name smaller folders")
    found = tuple(scan_project(place) for place in (*reads, *writes) if place.is_dir())
    policy = chain.from_iterable(map(protected.policy_below, writes))
    inner = (place for one in found for place in one.policy if any(place.is_relative_to(root) for root in writes))
    readable = (*_toolchains(person), *programs, *reads)
    shown = (*writes, *readable, *map(Path, system()), *interpreter())
    sockets = (place for one in found for place in one.sockets)
    return SandboxPolicy(
        project=own,
        writes=tuple(writes),
        reads=readable,
        guarded=fit_mounts(writes, tuple(dict.fromkeys((*find_guardable(writes, policy), *inner)))),
        own=tuple(place for place in own_code() if any(_overlap(place, root) for root in writes)),
        hidden=outermost((*_secrets_in(shown, protected), *sockets)),
        home=person,
        has_scratch_home=True,
        environment=environment,
        has_egress=has_egress,
        limits=limits,
    )


def _secrets_in(shown: Sequence[Path], protected: Protected) -> Iterator[Path]:
    """Resolved."""
    hidden = (resolve_inside(place, shown) for place in chain.from_iterable(map(protected.secrets_below, shown)))
    yield from filter(None, hidden)


def filter_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that commands get: those on an allowlist, so that no secret is among them, and who the person is
    for git, whose settings commands do not see."""
    kept = {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith("LC_")}
    made = {"PATH": os.defpath, "LANG": "C.UTF-8", **kept}
    git = shutil.which("git", path=SYSTEM_PATH)
    if git is None:
        return made
    command = (git, "config", "--global", "--get-regexp", r"^user\.(name|email)$")
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd="/", capture_output=True, text=True, timeout=GIT_S, check=False
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return made
    for name, _, value in (line.partition(" ") for line in done.stdout.splitlines()):
        if name in ("user.name", "user.email"):
            what = name.removeprefix("user.").upper()
            made.update({f"GIT_AUTHOR_{what}": value, f"GIT_COMMITTER_{what}": value})
    return made


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _existing(paths: Sequence[str], protected: Protected) -> Iterator[Path]:
    """A link to something private does not count: only the person can name that, and by its own name."""
    for given in paths:
        named = Path(given).expanduser()
        path = named.resolve()
        if path.exists() and (path == named or not protected.is_secret(path)):
            yield path


def _toolchains(person: Path) -> Iterator[Path]:
    """Links do not count: commands of a session in the home itself could have made them to show the next one
    anything."""
    with Root.open(person) as home:
        for name in TOOLCHAINS:
            with suppress(OSError), home.folder(name):
                yield person / name
