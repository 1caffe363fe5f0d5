"""Looking at image files."""

from pathlib import Path
from typing import Annotated

from talaria.core.errors import ToolFailed
from talaria.core.pictures import MAX_BYTES, Unfit, fit
from talaria.tools import places
from talaria.tools.base import Shown
from talaria.tools.builtin.located import located
from talaria.tools.function import tool


@located("reads", "Look at")
@tool(after_crash="repeat")
def view_image(path: Annotated[str, "Image to look at; relative to the working directory, or absolute."]) -> Shown:
    """Look at an image: a PNG, JPEG, GIF or WebP file, such as a screenshot."""
    target = Path(path)
    try:
        found = places.read(target, MAX_BYTES + 1)
    except OSError as fault:
        raise ToolFailed(f"Cannot read {target}: {fault.strerror}.") from fault
    if found is None:
        raise ToolFailed(f"Cannot read {target}: No such file or directory.")
    try:
        image, (width, height) = fit(found.content)
    except Unfit as fault:
        raise ToolFailed(f"{target} {fault}.") from fault
    shown = f"{target}: {image.media_type}, {width} x {height} pixels, {len(found.content):,} bytes"
    return Shown(shown, (image,))
