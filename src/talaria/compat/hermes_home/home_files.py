"""The files of a Hermes home: memories, skills and SOUL.md are imported, the rest is listed.

Nothing that is already here is overwritten. The other agent and its commands may still be working in its home: no link
that leads out of it is followed, whenever it was made.
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

from talaria.compat.hermes_home.report import ImportStep, make_left_step, make_present_step, make_taken_step
from talaria.core.fs import read_text
from talaria.core.trees import Root

MAX_COPIED_BYTES = 4 << 20
MAX_FOLDER_BYTES = 64 << 20
MAX_FOLDER_FILES = 5_000
_SKIPPED = frozenset({".git", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Way:
    """From one home to the other, under the same name. Nobody else may change ours, so the person's links in it are
    followed."""

    root: Path
    home: Path
    name: str

    @property
    def target(self) -> Path:
        return self.home / self.name

    @property
    def is_taken(self) -> bool:
        """Whether something already has that name."""
        try:
            with Root.open(self.target.parent) as folder:
                return folder.find(self.target.name) is not None
        except (FileNotFoundError, NotADirectoryError):
            return False


def file_step(kind: str, name: str, way: Way) -> ImportStep:
    """A link is followed if it does not lead out of the home."""
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
    with suppress(OSError), Root.open(way.target.parent) as folder:
        if folder.read(way.target.name, len(content) + 1) == content:
            return make_present_step(kind, name)
    return make_left_step(kind, name, f"{way.target} is different and stays")


def _write(way: Way, content: bytes) -> None:
    with Root.make(way.target.parent) as folder:
        folder.replace(way.target.name, content, mode=0o600)


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of a folder, listed without reading them; all by their names in it."""

    files: tuple[str, ...]
    links: Mapping[str, str]
    """Those that stay inside, and where they lead."""
    odd: tuple[str, ...]
    """Links that lead elsewhere, pipes, devices."""
    size_bytes: int

    @property
    def is_too_large(self) -> bool:
        return self.size_bytes > MAX_FOLDER_BYTES or len(self.files) > MAX_FOLDER_FILES


def list_tree(folder: Root) -> Tree:
    """Raises `OSError`."""
    files, links, odd, size = list[str](), dict[str, str](), list[str](), 0
    for name in _names(folder, ""):
        known = folder.info(name)
        size += known.st_size
        if stat.S_ISREG(known.st_mode):
            files.append(name)
            continue
        stays_inside = stat.S_ISLNK(known.st_mode) and not folder.read_link(name).startswith("/")
        if stays_inside:
            try:
                stays_inside = folder.find(folder.follow(name)) is not None
            except OSError:
                stays_inside = False
        if stays_inside:
            links[name] = folder.read_link(name)
        else:
            odd.append(name)
    return Tree(tuple(files), links, tuple(odd), size)


def _names(folder: Root, around: str) -> Iterator[str]:
    """Of everything that is not a folder; a link to a folder is a link."""
    with folder.folder(around) as here:
        entries = sorted(here.entries())
    for entry in entries:
        name = f"{around}/{entry.name}".lstrip("/")
        if entry.is_folder:
            yield from _names(folder, name) if entry.name not in _SKIPPED else ()
        else:
            yield name


def folder_step(kind: str, name: str, way: Way) -> ImportStep:
    try:
        with Root.open(way.root) as root, root.folder(way.name) as source:
            found = list_tree(source)
            is_same = way.is_taken and not found.is_too_large and _has_files(way.target, source, found)
    except OSError as fault:
        return make_left_step(kind, name, f"cannot be read: {fault.strerror}")
    if found.is_too_large:
        limits = f"{MAX_FOLDER_BYTES >> 20} MB or {MAX_FOLDER_FILES:,} files"
        return make_left_step(kind, name, f"larger than {limits}: copy it by hand")
    if not way.is_taken:
        without = f"without {', '.join(found.odd)}, which lead elsewhere or are not files" if found.odd else ""
        return make_taken_step(kind, name, lambda: _copy(found, way), without)
    if is_same:
        return make_present_step(kind, name)
    return make_left_step(kind, name, f"{way.target} is different and stays")


def _has_files(target: Path, source: Root, found: Tree) -> bool:
    """Whether it has all of them; what else the person has put there does not matter."""
    try:
        with Root.open(target) as folder:
            return all(
                folder.read(file, MAX_FOLDER_BYTES) == source.read(file, MAX_FOLDER_BYTES) for file in found.files
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
                    around, _, last = name.rpartition("/")
                    with (
                        source.open_file(name) as file,
                        made.make_folder(around) as inner,
                        inner.create(last, 0o600) as copy,
                    ):
                        copy.write(file.read(MAX_FOLDER_BYTES))
                        # Nobody else may write it any more; it stays executable if it was.
                        os.fchmod(copy.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o755 | 0o600)
                for name, target in found.links.items():
                    with made.make_folder(name.rpartition("/")[0]):
                        made.make_link(name, target)
            folder.move(draft, folder, way.target.name)
        except BaseException:
            with suppress(OSError):
                folder.remove_tree(draft)
            raise


MAX_FILE_BYTES = 1 << 20
MAX_SKILL_DEPTH = 4
DEFAULT_SOUL = "2765a846e1bb371d78d3b93b403dfb0f8d1ba1a9895edb5f608367abfe81194d"
"""SHA-256 of what Hermes itself writes; with it Talaria would call itself Hermes."""
_NO_SKILLS = frozenset({"node_modules", "site-packages", "venv", "__pycache__"})
_HANDLED = frozenset({"config.yaml", ".env", "state.db", "SOUL.md", "memories", "skills", "plugins", "profiles"})
_TEMPORARY = frozenset(
    {"logs", "cache", "tmp", "run", "bin", "sandboxes", "hermes-agent", "processes.json", "active_profile"}
)
_TEMPORARY_ENDINGS = ("-wal", "-shm", "-journal", ".pid", ".lock", ".log", ".bak", "_cache.yaml", "_cache.json")
_REASONS = {
    "cron": "Talaria has no schedule yet",
    "hooks": "Talaria has no hooks in files yet",
    "auth.json": "logins stay with Hermes: use an API key, or log in again",
    "pairing": "you are asked again whom to let in: talaria pairing",
    "platforms": "connect your chats again: talaria gateway platforms",
    "gateway": "connect your chats again: talaria gateway platforms",
    "sessions": "old transcripts; the conversations are in state.db",
}


def plan_files(root: Path, home: Path) -> Iterator[ImportStep]:
    """From the Hermes home `root` into ours."""
    soul = read_text(root / "SOUL.md", MAX_FILE_BYTES)
    if soul is not None and digest(soul) == DEFAULT_SOUL:
        yield make_left_step("identity", "SOUL.md", "unchanged since Hermes wrote it: it says that it is Hermes")
    elif soul is not None:
        yield file_step("identity", "SOUL.md", Way(root, home, "SOUL.md"))
    for path in _inside(root / "memories"):
        if path.suffix == ".md":
            yield file_step("memory", path.name, Way(root, home, f"memories/{path.name}"))
        elif not _is_temporary(path):
            yield make_left_step("memory", path.name, "it belongs to a plugin")
    for folder in _skill_folders(root / "skills", MAX_SKILL_DEPTH):
        name = folder.relative_to(root / "skills")
        if folder.is_symlink():
            yield make_left_step("skill", str(name), f"a link to {folder.readlink()}: copy it by hand")
        else:
            yield folder_step("skill", str(name), Way(root, home, f"skills/{name}"))
    for path in _plugin_folders(root / "plugins"):
        how = f"`talaria plugins install {quote(str(path))}`"
        yield make_left_step("plugin", path.name, f"its code runs only if you say so: {how}")
    for path in _inside(root / "profiles"):
        if path.is_dir():
            how = f"`talaria -p {path.name} import hermes {quote(str(path))}`"
            yield make_left_step("profile", path.name, f"a home of its own: {how}")
    for path in _inside(root):
        if path.name not in _HANDLED and not _is_temporary(path) and not (path.is_dir() and not _inside(path)):
            name = f"cron ({_count_jobs(path)} jobs)" if path.name == "cron" else path.name
            yield make_left_step("file", name, _REASONS.get(path.name, "Talaria has no use for it"))


def digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()


def _skill_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Also inside categories; nothing inside a skill is a skill."""
    for path in _inside(folder):
        if path.name.startswith(".") or path.name in _NO_SKILLS or not path.is_dir():
            continue
        if (path / "SKILL.md").exists():
            yield path
        elif depth > 1 and not path.is_symlink():
            yield from _skill_folders(path, depth - 1)


def _plugin_folders(folder: Path) -> Iterator[Path]:
    for path in _inside(folder):
        if not path.is_dir() or path.name.startswith((".", "_")):
            continue
        if any((path / mark).exists() for mark in ("plugin.yaml", "plugin.yml", "__init__.py")):
            yield path
        else:  # a category
            yield from (inner for inner in _inside(path) if (inner / "plugin.yaml").exists())


def _count_jobs(folder: Path) -> int:
    try:
        found: Any = msgspec.json.decode(read_text(folder / "jobs.json", MAX_FILE_BYTES) or "[]")
    except msgspec.MsgspecError:
        return 0
    jobs: Any = cast("dict[str, Any]", found).get("jobs") if isinstance(found, dict) else found
    return len(cast("Sequence[Any]", jobs)) if isinstance(jobs, list | dict) else 0


def _is_temporary(path: Path) -> bool:
    """Made again whenever it is needed."""
    return (
        path.name in _TEMPORARY
        or path.name.startswith(".")
        or ".bak." in path.name
        or path.name.endswith(_TEMPORARY_ENDINGS)
    )


def _inside(folder: Path) -> list[Path]:
    """In the order of their names; empty if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
