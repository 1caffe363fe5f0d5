"""Finding files by name and by content."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from talaria.model.errors import ToolFailed
from talaria.tools.base import Run
from talaria.tools.builtin.searching import REFUSED, Wanted
from talaria.tools.function import path_effect, tool
from talaria.waiting import completed

TIME_S = 20.0
_PROGRAM = str(Path(__file__).with_name("searching.py"))


@tool(after_crash="repeat", effect=path_effect("reads"))
async def search_files(
    pattern: Annotated[str, "A regular expression for content; a glob such as *.py for names."],
    run: Run,
    path: Annotated[str, "Folder (or file) to search in."] = ".",
    target: Annotated[Literal["content", "names"], "What the pattern is matched against."] = "content",
    glob: Annotated[str, "For content: only files whose name matches this glob."] = "*",
    limit: Annotated[int, "How many matches at most."] = 100,
) -> str:
    """Search below a folder: file contents by regular expression, or file names by glob."""
    root = run.scope.resolve(path)
    most = max(1, limit)
    hits = await _search(Wanted(root=str(root), pattern=pattern, by_name=target == "names", glob=glob, limit=most + 1))
    if not hits:
        return "[nothing found]"
    more = "\n[there are more matches; narrow the search]" if len(hits) > most else ""
    return "\n".join(hits[:most]) + more


async def _search(wanted: Wanted) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        _PROGRAM,
        msgspec.json.encode(wanted).decode(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TIME_S):
            found, said = await process.communicate()
    except TimeoutError:
        raise ToolFailed(f"The search took longer than {TIME_S:.0f} seconds; narrow it.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await completed(process.wait())
    if process.returncode == REFUSED:
        raise ToolFailed(said.decode("utf-8", "replace"))
    return found.decode("utf-8", "replace").splitlines()
