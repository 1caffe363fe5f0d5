"""The files of a Hermes home: memories, skills and SOUL.md come along, the rest is named.

Files and folders that are taken over as they are. What is there already is never overwritten.

The other agent and its commands may still work in its home: no link is followed that leads out of it, whenever it came
there.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, cast

import msgspec

from talaria.compat.hermes_home.report import ImportStep, make_left_step, make_taken_step, there
from talaria.core.fs import read_text
from talaria.core.trees import Root

MAX_COPIED_BYTES = 4 << 20
MAX_FOLDER_BYTES = 64 << 20
MAX_FOLDER_FILES = 5_000
_PASSED_OVER = frozenset({".git", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Way:
    """From one home to the other, under the same name. Ours is nobody else's to change: the person may have links
    there."""

    root: Path
    home: Path
    name: str

    @property
    def target(self) -> Path:
        return self.home / self.name

    @property
    def is_taken(self) -> bool:
        """Whether something is there already."""
        try:
            with Root.open(self.target.parent) as folder:
                return folder.find(self.target.name) is not None
        except (FileNotFoundError, NotADirectoryError):
            return False


def file_step(kind: str, name: str, way: Way) -> ImportStep:
    """A link is followed as long as it does not lead out of the home."""
    try:
        with Root.open(way.root) as root:
            content = root.read(root.follow(way.name), MAX_COPIED_BYTES + 1)
    except OSError as fault:
        if fault.errno == errno.EXDEV:
            return make_left_step(kind, name, "a link that leads out of the Hermes home")
        return make_left_step(kind, name, f"cannot be read: {fault.strerror}")
    if len(content) > MAX_COPIED_BYTES:
        return make_left_step(kind, name, f"longer than {MAX_COPIED_BYTES >> 20} MB")
    if not way.is_taken:
        return make_taken_step(kind, name, lambda: _write(way, content))
    return (
        there(kind, name) if _holds(way, content) else make_left_step(kind, name, f"{way.target} is another, and stays")
    )


def _write(way: Way, content: bytes) -> None:
    with Root.make(way.target.parent) as folder:
        folder.replace(way.target.name, content, mode=0o600)


def _holds(way: Way, content: bytes) -> bool:
    try:
        with Root.open(way.target.parent) as folder:
            return folder.read(way.target.name, len(content) + 1) == content
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of a folder, told without reading them; all by their names in it."""

    files: tuple[str, ...]
    links: Mapping[str, str]
    """Those that stay inside, and where they lead."""
    odd: tuple[str, ...]
    """Links that lead elsewhere, pipes, devices."""
    size_bytes: int


def tree(folder: Root) -> Tree:
    """Raises `OSError`."""
    files, links, odd, size = list[str](), dict[str, str](), list[str](), 0
    for name in _names(folder, ""):
        known = folder.info(name)
        size += known.st_size
        if stat.S_ISREG(known.st_mode):
            files.append(name)
        elif stat.S_ISLNK(known.st_mode) and _stays_inside(folder, name):
            links[name] = folder.read_link(name)
        else:
            odd.append(name)
    return Tree(tuple(files), links, tuple(odd), size)


def _names(folder: Root, around: str) -> Iterator[str]:
    """Of all that is no folder; a link to a folder is a link."""
    with folder.folder(around) as here:
        entries = sorted(here.entries())
    for entry in entries:
        name = f"{around}/{entry.name}".lstrip("/")
        if entry.is_folder:
            yield from _names(folder, name) if entry.name not in _PASSED_OVER else ()
        else:
            yield name


def _stays_inside(folder: Root, name: str) -> bool:
    if folder.read_link(name).startswith("/"):
        return False
    try:
        return folder.find(folder.follow(name)) is not None
    except OSError:
        return False


def folder_step(kind: str, name: str, way: Way) -> ImportStep:
    try:
        with Root.open(way.root) as root, root.folder(way.name) as source:
            found = tree(source)
            is_same = way.is_taken and _is_same(source, found, way)
    except OSError as fault:
        return make_left_step(kind, name, f"cannot be read: {fault.strerror}")
    if found.size_bytes > MAX_FOLDER_BYTES or len(found.files) > MAX_FOLDER_FILES:
        return make_left_step(
            kind, name, f"larger than {MAX_FOLDER_BYTES >> 20} MB or {MAX_FOLDER_FILES:,} files: copy it by hand"
        )
    if not way.is_taken:
        without = f"without {', '.join(found.odd)}, which lead elsewhere or are no files" if found.odd else ""
        return make_taken_step(kind, name, lambda: _copy(found, way), without)
    return there(kind, name) if is_same else make_left_step(kind, name, f"{way.target} is another, and stays")


def _is_same(source: Root, found: Tree, way: Way) -> bool:
    """All of it is there; what the person has put beside it does not matter."""
    if found.size_bytes > MAX_FOLDER_BYTES or len(found.files) > MAX_FOLDER_FILES:
        return False
    try:
        with Root.open(way.target) as target:
            return all(
                target.read(file, MAX_FOLDER_BYTES) == source.read(file, MAX_FOLDER_BYTES) for file in found.files
            )
    except OSError:
        return False


def _copy(found: Tree, way: Way) -> None:
    """The whole folder or nothing: it gets its name when it is complete."""
    draft = f".{way.target.name[:32]}.{os.urandom(6).hex()}"
    with Root.open(way.root) as root, root.folder(way.name) as source, Root.make(way.target.parent) as folder:
        try:
            with folder.make_folder(draft, 0o700) as made:
                for name in found.files:
                    _copy_file(source, made, name)
                for name, target in found.links.items():
                    with made.make_folder(name.rpartition("/")[0]):
                        made.make_link(name, target)
            folder.move(draft, folder, way.target.name)
        except BaseException:
            with suppress(OSError):
                folder.remove_tree(draft)
            raise


def _copy_file(source: Root, target: Root, name: str) -> None:
    """Others may no longer write it; whether it can be run stays."""
    around, _, last = name.rpartition("/")
    with (
        source.open_file(name) as file,
        target.make_folder(around) as folder,
        folder.create(last, 0o600) as made,
    ):
        made.write(file.read(MAX_FOLDER_BYTES))
        os.fchmod(made.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o755 | 0o600)


MAX_FILE_BYTES = 1 << 20
MAX_SKILL_DEPTH = 4
DEFAULT_SOUL = "2765a846e1bb371d78d3b93b403dfb0f8d1ba1a9895edb5f608367abfe81194d"
"""SHA-256 of what Hermes itself writes; with it Talaria would call itself Hermes."""
_NO_SKILLS = frozenset({"node_modules", "site-packages", "venv", "__pycache__"})
_HANDLED = frozenset({"config.yaml", ".env", "state.db", "SOUL.md", "memories", "skills", "plugins", "profiles"})
_PASSING = frozenset(
    {"logs", "cache", "tmp", "run", "bin", "sandboxes", "hermes-agent", "processes.json", "active_profile"}
)
_PASSING_ENDINGS = ("-wal", "-shm", "-journal", ".pid", ".lock", ".log", ".bak", "_cache.yaml", "_cache.json")
_REASONS = {
    "cron": "Talaria has no schedule yet",
    "hooks": "Talaria has no hooks that are files yet",
    "auth.json": "logins stay with Hermes: use an API key, or log in anew",
    "pairing": "whom you let in is asked anew: talaria pairing",
    "platforms": "chats are connected anew: talaria gateway platforms",
    "gateway": "chats are connected anew: talaria gateway platforms",
    "sessions": "old transcripts; the conversations are in state.db",
}


def belongings(root: Path, home: Path) -> Iterator[ImportStep]:
    """Of the Hermes home `root`, for ours."""
    yield from _soul(root, home)
    yield from _memories(root, home)
    yield from _skills(root, home)
    yield from _plugins(root)
    yield from _profiles(root)
    yield from _others(root)


def _soul(root: Path, home: Path) -> Iterator[ImportStep]:
    file = root / "SOUL.md"
    text = read_text(file, MAX_FILE_BYTES)
    if text is None:
        return
    if digest(text) == DEFAULT_SOUL:
        yield make_left_step(
            "identity", "SOUL.md", "nobody has changed it since Hermes wrote it: it says that it is Hermes"
        )
    else:
        yield file_step("identity", "SOUL.md", Way(root, home, "SOUL.md"))


def digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()


def _memories(root: Path, home: Path) -> Iterator[ImportStep]:
    for path in _inside(root / "memories"):
        if path.suffix == ".md":
            yield file_step("memory", path.name, Way(root, home, f"memories/{path.name}"))
        elif not _is_passing(path):
            yield make_left_step("memory", path.name, "it belongs to a plugin")


def _skills(root: Path, home: Path) -> Iterator[ImportStep]:
    top = root / "skills"
    for folder in _skill_folders(top, MAX_SKILL_DEPTH):
        name = folder.relative_to(top)
        if folder.is_symlink():
            yield make_left_step("skill", str(name), f"a link to {folder.readlink()}: copy it by hand")
        else:
            yield folder_step("skill", str(name), Way(root, home, f"skills/{name}"))


def _skill_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Also inside categories; nothing inside a skill is a skill."""
    for path in _inside(folder):
        if path.name.startswith(".") or path.name in _NO_SKILLS or not path.is_dir():
            continue
        if (path / "SKILL.md").exists():
            yield path
        elif depth > 1 and not path.is_symlink():
            yield from _skill_folders(path, depth - 1)


def _plugins(root: Path) -> Iterator[ImportStep]:
    for path in _plugin_folders(root / "plugins"):
        yield make_left_step(
            "plugin", path.name, f"code runs only if you say so: `talaria plugins install {quote(str(path))}`"
        )


def _plugin_folders(folder: Path) -> Iterator[Path]:
    for path in _inside(folder):
        if not path.is_dir() or path.name.startswith((".", "_")):
            continue
        if any((path / mark).exists() for mark in ("plugin.yaml", "plugin.yml", "__init__.py")):
            yield path
        else:  # a category
            yield from (inner for inner in _inside(path) if (inner / "plugin.yaml").exists())


def _profiles(root: Path) -> Iterator[ImportStep]:
    for path in _inside(root / "profiles"):
        if path.is_dir():
            yield make_left_step(
                "profile", path.name, f"a home of its own: `talaria -p {path.name} import hermes {quote(str(path))}`"
            )


def _others(root: Path) -> Iterator[ImportStep]:
    for path in _inside(root):
        if path.name in _HANDLED or _is_passing(path) or _is_empty(path):
            continue
        name = f"cron ({_jobs(path)} jobs)" if path.name == "cron" else path.name
        yield make_left_step("file", name, _REASONS.get(path.name, "Talaria has no use for it"))


def _jobs(folder: Path) -> int:
    try:
        found: Any = msgspec.json.decode(read_text(folder / "jobs.json", MAX_FILE_BYTES) or "[]")
    except msgspec.MsgspecError:
        return 0
    jobs: Any = cast("dict[str, Any]", found).get("jobs") if isinstance(found, dict) else found
    return len(cast("Sequence[Any]", jobs)) if isinstance(jobs, list | dict) else 0


def _is_passing(path: Path) -> bool:
    """Made anew whenever it is needed."""
    return (
        path.name in _PASSING
        or path.name.startswith(".")
        or ".bak." in path.name
        or path.name.endswith(_PASSING_ENDINGS)
    )


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not _inside(path)


def _inside(folder: Path) -> list[Path]:
    """In the order of their names; nothing, if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
