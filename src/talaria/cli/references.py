"""What is added to a message: files named by `@path`, images, and standard input."""

import os
import re
import select
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import cast

import msgspec

from talaria.cli.notices import say
from talaria.core.errors import BadInput
from talaria.core.messages import Context, Image, Text, User
from talaria.core.pictures import NO_IMAGE, encode_image, media_type
from talaria.core.trees import Root, read_file

MAX_IMAGE_BYTES = 20 << 20
MAX_FILES = 8
MAX_FILE_BYTES = 100_000
MAX_NAMES = 200
MAX_INPUT_BYTES = 4 << 20
"""More than any model can read at once."""
SILENCE_S = 2.0
_REFERENCE = re.compile(r"(?<![\w@/.])@(\"[^\"]+\"|[^\s\"'`,;()<>]+)")


def read_image(file: Path) -> Image:
    try:
        content = read_file(file, MAX_IMAGE_BYTES + 1)  # refuses pipes, which may never end, and devices
    except OSError as fault:
        raise BadInput(f"Cannot read the image {file}: {fault.strerror}.") from fault
    return decode_image(content, str(file))


def decode_image(content: bytes, file: str) -> Image:
    if len(content) > MAX_IMAGE_BYTES:
        raise BadInput(f"The image {file} is larger than {MAX_IMAGE_BYTES >> 20} MB.")
    found = media_type(content)
    if found is None:
        raise BadInput(f"{file} {NO_IMAGE}.")
    return encode_image(content, found)


def with_references(message: User, folder: Path) -> User:
    """Adds the named files that exist; any other word with an @ is just a word. Reads the disk."""
    found = dict.fromkeys(
        path for part in message.parts if isinstance(part, Text) for path in _find_paths(part.text, folder)
    )
    if len(found) > MAX_FILES:
        raise BadInput(
            f"A message can have at most {MAX_FILES} files: name a folder instead, or say where the files are."
        )
    parts = [part for path in found for part in _read_reference(path, folder)]
    images = tuple(part for part in parts if isinstance(part, Image))
    texts = tuple(part for part in parts if isinstance(part, Context))
    return msgspec.structs.replace(message, parts=(*images, *message.parts, *texts)) if parts else message


def list_references(text: str, folder: Path) -> list[str]:
    """The files and folders named in the text, as people write them. Reads the disk."""
    return [_display_path(path, folder) for path in dict.fromkeys(_find_paths(text, folder))]


def _display_path(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _find_paths(text: str, folder: Path) -> list[Path]:
    """Tries each word as it is, then without punctuation at its end."""
    paths = list[Path]()
    for word in (word.strip('"') for word in _REFERENCE.findall(text)):
        names = (name for name in (word, word.rstrip(".:!?")) if name)
        candidates = (Path(os.path.normpath(folder / Path(name).expanduser())) for name in names)
        paths += [path for path in candidates if _exists(path, folder)][:1]
    return paths


def _exists(path: Path, folder: Path) -> bool:
    """True also for a link that leads out of the folder, so that reading it reports that."""
    try:
        with _open_parent(path, folder) as (root, name):
            try:
                return root.find(root.follow(name)) is not None
            except OSError:
                return True
    except (OSError, ValueError, RuntimeError):
        return False


@contextmanager
def _open_parent(path: Path, folder: Path) -> Generator[tuple[Root, str]]:
    """A folder and the name of something in it. Commands of the agent may have created links anywhere in the folder
    it works in, so none that leads out of it is followed; links elsewhere are the person's own."""
    if path.is_relative_to(folder):
        with Root.open(folder) as root:
            yield root, str(path.relative_to(folder))
    else:
        real = path.resolve()
        with Root.open(real.parent) as root:
            yield root, real.name


def _read_reference(path: Path, folder: Path) -> tuple[Context | Image, ...]:
    """A file outside the folder is also named by its real path, which allows tools to read it from now on."""
    shown = _display_path(path, folder)
    try:
        with _open_parent(path, folder) as (root, name):
            true_name = root.follow(name)
            real = str(Path(root.path) / true_name)
            file = "" if path.is_relative_to(folder) else real
            if stat.S_ISDIR(root.info(true_name).st_mode):
                with root.folder(true_name) as inner:
                    names = sorted(f"{one.name}/" if one.is_folder else one.name for one in inner.entries())
                more = f"\n… and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
                return (Context(f"[The folder {shown}:]\n" + "\n".join(names[:MAX_NAMES]) + more, file),)
            data = root.read(true_name, MAX_FILE_BYTES + 1)
            if media_type(data) is not None:
                image = decode_image(root.read(true_name, MAX_IMAGE_BYTES + 1), shown)
                return (image, Context(f"[The image {shown}]", file)) if file else (image,)
    except OSError as fault:
        raise BadInput(f"Cannot read {shown}: {fault.strerror}.") from fault
    if len(data) > MAX_FILE_BYTES:
        return (Context(f"[The file {shown} is long; read the parts you need.]", file),)
    if b"\0" in data:
        return (Context(f"[The file {shown} is not text.]", file),)
    return (Context(f"[The file {shown}:]\n{data.decode('utf-8', 'replace')}", file),)


def is_piped() -> bool:
    return sys.stdin is not None and not sys.stdin.isatty()


def read_stdin() -> str:
    """Read standard input to its end. Waits for a slow writer, and says so."""
    if sys.stdin is None:
        return ""
    if is_piped() and not _has_input(SILENCE_S):
        say("Waiting for standard input to end; add `< /dev/null` if there is none.")
    content = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    _refuse_binary(content)
    if len(content) > MAX_INPUT_BYTES:
        raise BadInput(
            f"Standard input is larger than {MAX_INPUT_BYTES >> 20} MB, more than a model can read at once: "
            "pipe only a part of it, or save it to a file and ask about that."
        )
    return content.decode(sys.stdin.encoding, "replace").replace("\r\n", "\n").strip()


def refuse_binary_lines() -> None:
    """For input whose lines are turns: checks only what has arrived so far."""
    if is_piped() and _has_input(0):
        _refuse_binary(cast("BufferedReader", sys.stdin.buffer).peek())


def _has_input(within_s: float) -> bool:
    return bool(select.select([sys.stdin], [], [], within_s)[0])


def _refuse_binary(content: bytes) -> None:
    if b"\0" not in content:
        return
    found = media_type(content)
    what = f"an image ({found}): add it with --image FILE" if found else "not text (UTF-8)"
    raise BadInput(f"Standard input is {what}.")
