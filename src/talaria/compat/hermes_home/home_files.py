"""The files of a Hermes home: memories, skills and SOUL.md come along, the rest is named."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, cast

import msgspec

from talaria.compat.hermes_home.file_copy import Way, file_step, folder_step
from talaria.compat.hermes_home.report import ImportStep, left
from talaria.files import read_text

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
        yield left("identity", "SOUL.md", "nobody has changed it since Hermes wrote it: it says that it is Hermes")
    else:
        yield file_step("identity", "SOUL.md", Way(root, home, "SOUL.md"))


def digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()


def _memories(root: Path, home: Path) -> Iterator[ImportStep]:
    for path in _inside(root / "memories"):
        if path.suffix == ".md":
            yield file_step("memory", path.name, Way(root, home, f"memories/{path.name}"))
        elif not _is_passing(path):
            yield left("memory", path.name, "it belongs to a plugin")


def _skills(root: Path, home: Path) -> Iterator[ImportStep]:
    top = root / "skills"
    for folder in _skill_folders(top, MAX_SKILL_DEPTH):
        name = folder.relative_to(top)
        if folder.is_symlink():
            yield left("skill", str(name), f"a link to {folder.readlink()}: copy it by hand")
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
        yield left("plugin", path.name, f"code runs only if you say so: `talaria plugins install {quote(str(path))}`")


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
            yield left(
                "profile", path.name, f"a home of its own: `talaria -p {path.name} import hermes {quote(str(path))}`"
            )


def _others(root: Path) -> Iterator[ImportStep]:
    for path in _inside(root):
        if path.name in _HANDLED or _is_passing(path) or _is_empty(path):
            continue
        name = f"cron ({_jobs(path)} jobs)" if path.name == "cron" else path.name
        yield left("file", name, _REASONS.get(path.name, "Talaria has no use for it"))


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
