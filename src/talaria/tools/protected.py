"""Places that are nobody's business: what no tool reads, and what none changes unasked."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from talaria.tools.credential_files import SECRETS, SYSTEM_SECRETS
from talaria.tools.repositories import OBEYED, OF_WORKTREES, WORKTREE_SETTINGS, is_obeyed

HOST_KEYS = (Path("/etc/ssh"), "ssh_host_*_key")

POLICY = (
    *(".git/hooks", ".git/config", ".talaria", ".mcp.json", ".vscode", ".idea", ".envrc", ".husky", ".githooks"),
    *(".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml", ".claude", ".cursor", ".codex", ".gemini", ".zed"),
    *(".devcontainer", ".mise.toml", "mise.toml", ".exrc", ".nvim.lua"),
)
"""In a project: what other programs run or heed without being asked to."""

COMPARED = (
    *("AGENTS.md", "CLAUDE.md", "GEMINI.md", "TALARIA.md", ".cursorrules", ".windsurfrules"),
    *(".cargo/config.toml", ".cargo/config", ".github/workflows", ".github/actions", ".github/copilot-instructions.md"),
    *(".gitlab-ci.yml", ".lefthook", ".lefthook.yaml", "lefthook.yaml", ".vimrc", ".lvimrc"),
)
"""The same, but branches of a repository differ in them, so commands may change them for a moment: what they leave is
compared afterwards."""

STARTUP = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile"),
    *(
        ".gitconfig",
        ".config/git",
        ".config/autostart",
        ".config/systemd",
        ".config/fish",
        ".local/bin",
        ".pam_environment",
    ),
)
"""In the person's home: what runs when they log in or open a shell."""

_OF_GIT = frozenset({"hooks", "config", "config.worktree", "commondir"})
ANYWHERE = frozenset(name for name in (*POLICY, *COMPARED) if not name.startswith(".git/"))

KEPT = ("config.yaml", ".env", "plugins.json", "plugins")
"""In Talaria's own home: some people keep them elsewhere, and a link here."""

OWN_CODE = (Path(sys.prefix), Path(__file__).parents[1])
"""What we run ourselves."""

SYSTEM = tuple(
    map(
        Path,
        (
            *("/usr", "/opt", "/nix", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"),
            *("/proc/cpuinfo", "/proc/meminfo", "/proc/version", "/proc/loadavg", "/proc/uptime", "/proc/filesystems"),
            *("/sys/devices/system/cpu", "/System", "/Library/Apple", "/Library/Developer", "/Library/Frameworks"),
            *("/private/etc/hosts", "/private/etc/services", "/private/etc/ssl"),
        ),
    )
)
"""What programs need of the system: the same on many machines, but for what is private there."""

TOOLCHAINS = (
    *(".local/bin", ".local/share/uv/python", ".local/share/uv/tools", ".local/share/pipx", ".local/share/mise"),
    *(".pyenv", ".rbenv", ".nvm", ".asdf"),
    *(".cargo/bin", ".rustup", ".bun/bin", ".deno/bin", ".volta", ".sdkman/candidates", "go/bin", ".local/lib"),
)
"""In the person's home: programs that they have installed for themselves. Commands in a sandbox see them, too."""

OPEN_IN_HOME = ("skills", "memories", "hermes/skills", "hermes/memories")
"""In Talaria's own home, and in that of its plugins: what the model may read, besides its session's own output."""


class Protected:
    """Told from a resolved path; what does not exist yet is protected, too."""

    def __init__(
        self,
        person_home: Path,
        home: Path,
        people: Path | None = None,
        programs: Sequence[Path] = (),
        shared: Sequence[Path] = (),
    ) -> None:
        """`people`: where those in chats have their folders, side by side. `programs`: files that run outside of any
        sandbox, wherever they are. `shared`: what the settings let commands read or write.

        Looks at the file system: not on the loop.
        """
        self._home = home
        self._people = people
        self._person = person_home
        others = (home.parent.parent,) if home.parent.name == "profiles" else ()
        linked = _both(home, KEPT) if home.exists() else ()
        host_keys = HOST_KEYS[0].glob(HOST_KEYS[1])
        places = (*_both(person_home, SECRETS), *map(Path, SYSTEM_SECRETS), *host_keys, *others, *linked)
        self._secrets = dict.fromkeys(places)
        self._startup = _both(person_home, STARTUP)
        self._programs = (*OWN_CODE, *programs)
        interpreter = Path(sys.base_prefix).resolve()
        self._readable = frozenset((*SYSTEM, *OWN_CODE, interpreter, *_both(person_home, TOOLCHAINS), *shared))

    @property
    def people(self) -> Path | None:
        """Where those in chats have their folders."""
        return self._people

    @property
    def person(self) -> Path:
        """Their home."""
        return self._person

    @property
    def names(self) -> tuple[str, ...]:
        """As a command might spell what is never read."""
        return (str(self._home), "$TALARIA_HOME", ".talaria", "/environ")

    def is_secret(self, path: Path, spill: Path | None = None) -> bool:
        """Never to be read, let alone written. `spill` is where a session finds its own output."""
        if path.is_relative_to(self._home):
            shown = (*(self._home / name for name in OPEN_IN_HOME), *((spill,) if spill else ()))
            return not any(path.is_relative_to(place) for place in shown)
        is_host_key = path.parent == HOST_KEYS[0] and path.match(HOST_KEYS[1])
        is_listed = any(place in self._secrets for place in (path, *path.parents))
        return is_listed or is_host_key or _is_of_a_process(path)

    def is_anothers(self, path: Path, project: Path) -> bool:
        """In the folder of somebody else, for whoever works in one of those."""
        people = self._people
        if people is None or people not in project.parents:
            return False
        return path.is_relative_to(people) and not path.is_relative_to(project)

    def is_private(self, path: Path, project: Path) -> bool:
        """Neither of the project nor needed to run programs: reading it is asked about, and nobody else's business."""
        holds_home = project != self._person and self._person.is_relative_to(project)  # then it is not a project
        if (path.is_relative_to(project) and not holds_home) or path.is_relative_to(self._home):
            return False
        return self._readable.isdisjoint((path, *path.parents))

    def may_be_shared(self, folder: Path) -> bool:
        """Whether a yes may cover all of a folder: not if it holds the whole home of the person, or of Talaria."""
        return not any(home.is_relative_to(folder) for home in (self._person, self._home))

    def is_own(self, path: Path) -> bool:
        """Talaria's own: no tool writes there."""
        return path.is_relative_to(self._home)

    def is_policy(self, path: Path, project: Path) -> bool:
        """To be written only if a person says so. Reads the settings of the repositories around it."""
        places = (*self._startup, *_policy(project), *self._programs)
        if any(path.is_relative_to(place) for place in places) or _is_hook(path) or is_obeyed(path, project):
            return True
        return path.is_relative_to(project) and policy_place(str(path.relative_to(project))) is not None

    def missing_below(self, root: Path) -> Iterator[Path]:
        """What runs when a person logs in, or lets others in, and is not there, in a folder that can be written."""
        for place in (*self._startup, self._person / ".ssh"):
            if place.is_relative_to(root) and not place.exists():
                yield place

    def secrets_below(self, root: Path) -> Iterator[Path]:
        """Those that are there, inside of `root`."""
        others = (self._people,) if self._people else ()
        for place in (self._home, *self._secrets, *others, Path("/proc")):
            if place != root and place.is_relative_to(root) and place.exists():
                yield place

    def is_around_secrets(self, folder: Path) -> bool:
        """Whether programs keep secrets somewhere in a folder, there or not."""
        begin = f"{folder}/".replace("//", "/")
        return any(str(place).startswith(begin) for place in (self._home, *self._secrets))

    def policy_below(self, root: Path) -> Iterator[Path]:
        """Those that are there, inside of a folder that can be written."""
        for place in (*_policy(root), *self._startup, *self._programs):
            if place.is_relative_to(root) and place.exists():
                yield place


def policy_place(name: str) -> str | None:
    """The file or folder that other programs obey to which a name below a project belongs, at any depth; None: none."""
    parts = name.split("/")
    for at, part in enumerate(parts, 1):
        if part == ".git":
            inner = parts[at:]
            deep = inner[:1] in (["modules"], ["worktrees"])
            heeded = next((place for place, one in enumerate(inner) if one in _OF_GIT and (deep or place == 0)), None)
            if not inner:
                return name
            return None if heeded is None else "/".join(parts[: at + heeded + 1])
        if part in ANYWHERE or f"{part}/{''.join(parts[at : at + 1])}" in ANYWHERE:
            return "/".join(parts[: at if part in ANYWHERE else at + 1])
    return None


def _both(home: Path, names: tuple[str, ...]) -> tuple[Path, ...]:
    """As they are called, and where they lead: some people keep theirs elsewhere. One that leads to the home itself or
    around it is a trick: it would make everything private."""
    there = frozenset[str]()
    with suppress(OSError):
        there = frozenset(one.name for one in home.iterdir())
    places: list[Path] = []
    for name in names:
        places.append(home / name)
        if name.partition("/")[0] in there:  # most are not, and lead nowhere
            places.append((home / name).resolve())
    return tuple(dict.fromkeys(place for place in places if not home.is_relative_to(place)))


def _policy(project: Path) -> tuple[Path, ...]:
    return tuple(project / name for name in POLICY)


def _is_hook(path: Path) -> bool:
    """Of any repository, wherever it is, and of the submodules in it."""
    if ".git" not in path.parts:
        return False
    inner = path.parts[path.parts.index(".git") + 1 :]
    obeyed = {*OBEYED, *OF_WORKTREES, WORKTREE_SETTINGS}
    return not inner or inner[0] in obeyed or (inner[0] in ("modules", "worktrees") and not obeyed.isdisjoint(inner))


def _is_of_a_process(path: Path) -> bool:
    """Under /proc there is the memory and the environment of every process, ours among them."""
    if path.parts[1:2] != ("proc",) or len(path.parts) < 3:
        return False
    return path.parts[2].isdigit() or path.parts[2] in ("self", "thread-self")
