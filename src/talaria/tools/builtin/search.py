"""Finding files by name and by content."""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from talaria.model.errors import BadArguments, ToolFailed
from talaria.tools.base import Run, Scope, Tool
from talaria.tools.builtin.located import located
from talaria.tools.diffs import visible
from talaria.tools.function import tool
from talaria.tools.protected import OPEN_IN_HOME, Protected
from talaria.tools.searching.program import REFUSED, Hit, Wanted
from talaria.tools.searching.tree import Identity
from talaria.waiting import completed, in_thread

TIME_S = 20.0
MAX_LIMIT = 1_000
MAX_OFFSET = 100_000
MAX_PATTERN_CHARS = 10_000
MAX_SHOWN_BYTES = 32_000
_MAX_LINE_BYTES = 1 << 20
_FOLDER = str(Path(__file__).parents[3])
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop()); from talaria.tools.searching.program import main; main()"


def search_tools(protected: Protected) -> tuple[Tool, ...]:
    """What is private is not searched, wherever the search begins."""

    @located("reads", "Search")
    @tool(after_crash="repeat")
    async def search_files(
        pattern: Annotated[str, "A regular expression for content; a glob such as *.py for names."],
        run: Run,
        path: Annotated[str, "Folder (or file) to search in."] = ".",
        target: Annotated[Literal["content", "names"], "What the pattern is matched against."] = "content",
        glob: Annotated[str, "For content: only files whose name matches this glob."] = "*",
        limit: Annotated[int, f"How many matches at most; never more than {MAX_LIMIT}."] = 100,
        offset: Annotated[int, "How many matches to skip, to go on with a search."] = 0,
    ) -> str:
        """Search below a folder: file contents by regular expression, or file names by glob.

        What .gitignore leaves out, binary files and files over 4 MB are skipped.
        """
        if len(pattern) + len(glob) > MAX_PATTERN_CHARS:
            raise BadArguments(f"The pattern is longer than {MAX_PATTERN_CHARS:,} characters.")
        wanted = Wanted(
            root=path,
            pattern=pattern,
            by_name=target == "names",
            glob=pattern if target == "names" else glob,
            skip=min(max(0, offset), MAX_OFFSET),
            limit=min(max(1, limit), MAX_LIMIT) + 1,
            hidden=await in_thread(lambda: list(_identities(protected.secrets_below(Path("/"))))),
            shown=await in_thread(lambda: list(_identities(_open_to_the_model(run.scope, protected)))),
            secrets=await in_thread(lambda: sorted(run.scope.redactor.forms)),
        )
        found = await _searched(wanted)
        return _page(found, wanted)

    return (search_files,)


@dataclass(slots=True)
class _Found:
    hits: list[Hit] = field(default_factory=list[Hit])
    code: int = 0
    said: str = ""
    is_stopped: bool = False


def _identities(places: Iterable[Path]) -> Iterator[Identity]:
    """Of what is private: a link, a second name or a mount cannot disguise it."""
    for place in places:
        with suppress(OSError):
            found = place.stat()
            yield found.st_dev, found.st_ino


def _open_to_the_model(scope: Scope, protected: Protected) -> Iterator[Path]:
    """Where a search may begin even inside of what is private; the gate knows whose folder is whose."""
    home = scope.spill.parent.parent
    yield from (scope.cwd, scope.spill, *(home / name for name in OPEN_IN_HOME))
    if (people := protected.people) is not None:
        yield people


async def _searched(wanted: Wanted) -> _Found:
    found = _Found()
    try:
        async with asyncio.timeout(TIME_S):
            await _collect(wanted, found)
    except TimeoutError:
        if not found.hits:
            raise ToolFailed(f"The search took longer than {TIME_S:.0f} seconds; narrow it.") from None
        found.is_stopped = True
    if found.code == REFUSED:
        raise ToolFailed(found.said)
    return found


def _hit(line: bytes) -> Hit:
    path, number, text = json.loads(line)
    return path, number, text


async def _collect(wanted: Wanted, found: _Found) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _PROGRAM, _FOLDER),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        limit=_MAX_LINE_BYTES,
    )
    assert process.stdin is not None  # noqa: S101  (as asked for)
    assert process.stdout is not None  # noqa: S101
    try:
        with suppress(ConnectionError):  # it has ended: that is seen next
            process.stdin.write(json.dumps(wanted).encode())  # not as an argument: others can read those
            await process.stdin.drain()
            process.stdin.close()
        while len(found.hits) < wanted["limit"] and (line := await process.stdout.readline()):
            found.hits.append(_hit(line))
        if len(found.hits) < wanted["limit"]:
            _, said = await process.communicate()
            found.code, found.said = process.returncode or 0, said.decode("utf-8", "replace")
    finally:
        if process.returncode is None:
            process.kill()
            await completed(process.communicate())  # reads what is left: an end is seen only behind it


def _page(found: _Found, wanted: Wanted) -> str:
    """Matches below the file where they are, as many as there is room for."""
    shown: list[str] = []
    room, count, last = MAX_SHOWN_BYTES, 0, ""
    for path, number, text in found.hits[: wanted["limit"] - 1]:
        lines = [*([path] if path != last else ()), *([f"{number}|{text}"] if number else ())]
        room -= sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)
        if room < 0 and shown:
            break
        shown += lines
        count, last = count + 1, path
    notes = _notes(found, count, wanted["skip"] + count)
    return visible("\n".join([*shown, *notes])) if shown else "[nothing found]"


def _notes(found: _Found, count: int, following: int) -> Iterator[str]:
    if count < len(found.hits):
        yield f"[there are more matches; narrow the search, or continue with offset={following}]"
    if found.is_stopped:
        yield f"[the search was stopped after {TIME_S:.0f} seconds; narrow it]"
