"""`@path` in what a person says: the file goes along with the words.

Images that a person adds to a question.
"""

import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from talaria.core.errors import BadInput
from talaria.core.messages import Context, Image, Text, User
from talaria.core.pictures import NO_IMAGE, encoded, media_type
from talaria.core.trees import Root, read_file

MAX_IMAGE_BYTES = 20 << 20


def read_image(file: Path) -> Image:
    try:
        content = read_file(file, MAX_IMAGE_BYTES + 1)  # neither a pipe, which may wait for ever, nor a device
    except OSError as fault:
        raise BadInput(f"Cannot read the image {file}: {fault.strerror}.") from fault
    return image_of(content, str(file))


def image_of(content: bytes, file: str) -> Image:
    """Of what is in a file."""
    if len(content) > MAX_IMAGE_BYTES:
        raise BadInput(f"The image {file} is larger than {MAX_IMAGE_BYTES >> 20} MB.")
    found = media_type(content)
    if found is None:
        raise BadInput(f"{file} {NO_IMAGE}.")
    return encoded(content, found)


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
    parts = [part for path in found for part in _content(path, folder)]
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
    paths = (next((path for path in _candidates(word, folder) if _is_there(path, folder)), None) for word in words)
    return [path for path in paths if path is not None]


def _candidates(word: str, folder: Path) -> list[Path]:
    """As it stands, or without what ends a sentence."""
    return [Path(os.path.normpath(folder / Path(name).expanduser())) for name in (word, word.rstrip(".:!?")) if name]


def _is_there(path: Path, folder: Path) -> bool:
    """Also what leads elsewhere: that is told when it is read."""
    try:
        with _opened_around(path, folder) as (root, name):
            try:
                return root.find(root.follow(name)) is not None
            except OSError:
                return True
    except (OSError, ValueError, RuntimeError):
        return False


@contextmanager
def _opened_around(path: Path, folder: Path) -> Generator[tuple[Root, str]]:
    """A folder and the name of something in it. In the folder that the agent works in, its commands may have put links
    anywhere, and none is followed that leads out; elsewhere the person has."""
    if path.is_relative_to(folder):
        with Root.open(folder) as root:
            yield root, str(path.relative_to(folder))
    else:
        real = path.resolve()
        with Root.open(real.parent) as root:
            yield root, real.name


def _content(path: Path, folder: Path) -> tuple[Context | Image, ...]:
    """What is elsewhere is told by its true path, too: tools may read it from now on."""
    shown = _shown(path, folder)
    try:
        with _opened_around(path, folder) as (root, name):
            true_name = root.follow(name)
            real = str(Path(root.path) / true_name)
            file = "" if path.is_relative_to(folder) else real
            if stat.S_ISDIR(root.info(true_name).st_mode):
                with root.folder(true_name) as inner:
                    return (Context(f"[The folder {shown}:]\n{_listed(inner)}", file),)
            data = root.read(true_name, MAX_FILE_BYTES + 1)
            if media_type(data) is not None:
                image = image_of(root.read(true_name, MAX_IMAGE_BYTES + 1), shown)
                return (image, Context(f"[The image {shown}]", file)) if file else (image,)
    except OSError as fault:
        raise BadInput(f"Cannot read {shown}: {fault.strerror}.") from fault
    if len(data) > MAX_FILE_BYTES:
        return (Context(f"[The file {shown} is long; read what you need of it.]", file),)
    if b"\0" in data:
        return (Context(f"[The file {shown} is no text.]", file),)
    return (Context(f"[The file {shown}:]\n{data.decode('utf-8', 'replace')}", file),)


def _listed(folder: Root) -> str:
    names = sorted(f"{one.name}/" if one.is_folder else one.name for one in folder.entries())
    left = f"\n… and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return "\n".join(names[:MOST_NAMES]) + left
