"""Images that a person adds to a question."""

import base64
from pathlib import Path

from talaria.model.errors import BadInput
from talaria.model.messages import Image

MAX_IMAGE_BYTES = 20 << 20
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)


def read_image(file: Path) -> Image:
    try:
        content = file.read_bytes()
    except OSError as fault:
        raise BadInput(f"Cannot read the image {file}: {fault.strerror}.") from fault
    if len(content) > MAX_IMAGE_BYTES:
        raise BadInput(f"The image {file} is larger than {MAX_IMAGE_BYTES >> 20} MB.")
    return Image(_media_type(content, file), base64.b64encode(content).decode())


def _media_type(content: bytes, file: Path) -> str:
    for signature, media_type in _SIGNATURES:
        if content.startswith(signature):
            return media_type
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    raise BadInput(f"{file} is not a PNG, JPEG, GIF or WebP image.")
