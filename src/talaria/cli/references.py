"""`@path` in what a person says: the file goes along with the words."""

import re
from pathlib import Path

import msgspec

from talaria.cli.pictures import read_image
from talaria.model.errors import BadInput
from talaria.model.messages import Context, Image, Text, User
from talaria.model.pictures import media_type

MOST_FILES = 8
MAX_FILE_BYTES = 100_000
MOST_NAMES = 200
_REFERENCE = re.compile(r"(?<![\w@/.])@(\"[^\"]+\"|[^\s\"'`,;()<>]+)")


def with_references(message: User, folder: Path) -> User:
    """Files that are there; any other word with an @ is just a word. Reads the disk."""
    found = dict.fromkeys(
        path for part in message.parts if isinstance(part, Text) for path in _named(part.text, folder)
    )
    if len(found) > MOST_FILES:
        raise BadInput(
            f"More than {MOST_FILES} files are too many for one message; name a folder, or say where they are."
        )
    parts = [_content(path, folder) for path in found]
    images = tuple(part for part in parts if isinstance(part, Image))
    texts = tuple(part for part in parts if isinstance(part, Context))
    return msgspec.structs.replace(message, parts=(*images, *message.parts, *texts)) if parts else message


def references(text: str, folder: Path) -> list[str]:
    """The files and folders that are named in it, as people write them. Looks at the disk."""
    return [_shown(path, folder) for path in dict.fromkeys(_named(text, folder))]


def _shown(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _named(text: str, folder: Path) -> list[Path]:
    words = (word.strip('"') for word in _REFERENCE.findall(text))
    paths = (next((path for path in _candidates(word, folder) if path.exists()), None) for word in words)
    return [path for path in paths if path is not None]


def _candidates(word: str, folder: Path) -> list[Path]:
    """As it stands, or without what ends a sentence."""
    return [folder / Path(name).expanduser() for name in (word, word.rstrip(".:!?")) if name]


def _content(path: Path, folder: Path) -> Context | Image:
    shown = _shown(path, folder)
    if path.is_dir():
        names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in path.iterdir())
        left = f"\n… and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return Context(f"[The folder {shown}:]\n" + "\n".join(names[:MOST_NAMES]) + left)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as fault:
        raise BadInput(f"Cannot read {shown}: {fault.strerror}.") from fault
    if media_type(data) is not None:
        return read_image(path)
    if len(data) > MAX_FILE_BYTES:
        return Context(f"[The file {shown} is long; read what you need of it.]")
    if b"\0" in data:
        return Context(f"[The file {shown} is no text.]")
    return Context(f"[The file {shown}:]\n{data.decode('utf-8', 'replace')}")
