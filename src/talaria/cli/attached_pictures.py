"""Images that a person adds to a question."""

from pathlib import Path

from talaria.core.errors import BadInput
from talaria.core.messages import Image
from talaria.core.pictures import NO_IMAGE, encoded, media_type
from talaria.trees import read_file

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
