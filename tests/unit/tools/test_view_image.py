"""Looking at image files."""

import base64
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from talaria.core.ids import CallId
from talaria.core.messages import ToolCall, ToolResult
from talaria.core.pictures import MAX_BYTES
from talaria.tools.base import Effect, Invocation, OpenGate, Scope
from talaria.tools.builtin.file_tools import view_image
from talaria.tools.executor import Executor
from talaria.tools.registry import Toolbox

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WEBP = base64.b64decode("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")

View = Callable[[str], Awaitable[ToolResult]]


@pytest.fixture
def view(scope: Scope) -> View:
    executor = Executor(Toolbox((view_image,)), OpenGate(), scope)

    async def call(path: str) -> ToolResult:
        return await executor.call(ToolCall(CallId("c1"), "view_image", json.dumps({"path": path})))

    return call


def prepared(scope: Scope, path: str) -> Invocation:
    return view_image.prepare(json.dumps({"path": path}), scope)


@pytest.mark.parametrize(("content", "type_"), [(PNG, "image/png"), (WEBP, "image/webp")], ids=["png", "webp"])
async def test_an_image_is_shown_by_its_content_whatever_it_is_called(
    view: View, cwd: Path, content: bytes, type_: str
) -> None:
    (cwd / "shot.txt").write_bytes(content)
    result = await view("shot.txt")
    assert not result.is_error
    assert result.text == f"{cwd / 'shot.txt'}: {type_}, 1 x 1 pixels, {len(content)} bytes"
    (image,) = result.images
    assert (image.media_type, base64.b64decode(image.data)) == (type_, content)


async def test_what_cannot_be_shown_says_why_and_holds_no_image(view: View, cwd: Path) -> None:
    (cwd / "page.png").write_text("<html>")
    (cwd / "large.png").write_bytes(PNG.ljust(MAX_BYTES + 1, b"\0"))
    (cwd / "endless.png").write_bytes(PNG)
    os.truncate(cwd / "endless.png", 1 << 40)
    (cwd / "folder").mkdir()
    os.mkfifo(cwd / "pipe")
    told = {
        "page.png": "page.png is not a PNG, JPEG, GIF or WebP image.",
        "large.png": "large.png is larger than 3.75 MB, which is more than models accept.",
        "endless.png": "endless.png is larger than 3.75 MB, which is more than models accept.",
        "missing.png": "missing.png: No such file or directory.",
        "folder": "Cannot read",
        "pipe": "Cannot read",
    }
    results = {name: await view(name) for name in told}
    assert [name for name, result in results.items() if not result.is_error or result.images] == []
    assert [name for name, said in told.items() if said not in results[name].text] == []


def test_it_reads_one_place_and_is_not_trusted_outside_the_project(scope: Scope, tmp_path: Path) -> None:
    inside, outside = prepared(scope, "shot.png"), prepared(scope, str(tmp_path / "shot.png"))
    assert inside.effect == Effect("reads", (scope.cwd / "shot.png",))
    assert inside.claim.reads == (scope.cwd / "shot.png",)
    assert (inside.claim.is_untrusted, outside.claim.is_untrusted) == (False, True)
    assert view_image.after_crash == "repeat"


async def test_a_link_that_came_to_stand_there_since_is_not_followed(scope: Scope, cwd: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(PNG)
    executor = Executor(Toolbox((view_image,)), OpenGate(), scope)
    ready = executor.prepare(ToolCall(CallId("c1"), "view_image", '{"path": "shot.png"}'))
    (cwd / "shot.png").symlink_to(tmp_path / "secret.png")
    await executor.admit(ready)
    result = await executor.run(ready)
    assert result.is_error
    assert result.images == ()
