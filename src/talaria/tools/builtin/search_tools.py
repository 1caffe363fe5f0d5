"""The tool that searches files by name and by content."""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.redaction import Redactor
from talaria.tools.base import Run, Tool
from talaria.tools.diffs import replace_surrogates
from talaria.tools.function import is_outside, path_tool, tool
from talaria.tools.protected import OPEN_IN_HOME, Protected
from talaria.tools.sandbox.base import ToolHost
from talaria.tools.sandbox.project_reader import PACKAGE
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.system import PYTHON
from talaria.tools.searching.file_tree import Identity, read_ignores_above
from talaria.tools.searching.search_program import REFUSED, FileHit, SearchRequest
from talaria.tools.workspaces import Workspaces

TIME_S = 20.0
MAX_LIMIT = 1_000
MAX_OFFSET = 100_000
MAX_PATTERN_CHARS = 10_000
MAX_SHOWN_BYTES = 32_000
_MAX_LINE_BYTES = 1 << 20
_PROGRAM = """\
import sys, types
talaria = sys.modules["talaria"] = types.ModuleType("talaria")
talaria.__path__ = [sys.argv.pop()]  # the folder around it cannot be listed in every sandbox
from talaria.tools.searching.search_program import main
main()
"""
_ARGUMENTS = ("-I", "-S", "-c", _PROGRAM, str(PACKAGE))


def search_tools(protected: Protected, workspaces: Workspaces | None = None) -> tuple[Tool, ...]:
    """Private files are never searched, wherever the search starts. `workspaces`: a project is searched inside its
    session's sandbox, if it has one."""

    @path_tool("reads", "Search")
    @tool(after_crash="repeat")
    async def search_files(
        pattern: Annotated[str, "A regular expression for content, or a glob such as *.py for names."],
        run: Run,
        path: Annotated[str, "Folder or file to search."] = ".",
        target: Annotated[Literal["content", "names"], "What to match the pattern against."] = "content",
        glob: Annotated[str, "For content: search only files whose names match this glob."] = "*",
        limit: Annotated[int, f"Maximum number of matches, up to {MAX_LIMIT}."] = 100,
        offset: Annotated[int, "Number of matches to skip, to continue a search."] = 0,
    ) -> str:
        """Search a folder and everything below it: file contents by regular expression, or file names by glob.

        Skips files that .gitignore excludes, binary files, and files over 4 MB.
        """
        if len(pattern) + len(glob) > MAX_PATTERN_CHARS:
            raise BadArguments(f"The pattern is longer than {MAX_PATTERN_CHARS:,} characters.")
        home = run.scope.spill.parent.parent
        starts = [run.scope.cwd, run.scope.spill, *(home / name for name in OPEN_IN_HOME)]
        if protected.people is not None:
            starts.append(protected.people)  # the gate knows whose folder is whose
        is_inside = workspaces is not None and not await in_thread(lambda: is_outside(Path(path), run.scope))
        async with workspaces.open_reader(run.scope) if workspaces and is_inside else nullcontext() as host:
            wanted = SearchRequest(
                root=path,
                pattern=pattern,
                by_name=target == "names",
                glob=pattern if target == "names" else glob,
                skip=min(max(0, offset), MAX_OFFSET),
                limit=min(max(1, limit), MAX_LIMIT) + 1,
                hidden=await in_thread(lambda: list(_identities(protected.secrets_below(Path("/"))))),
                shown=await in_thread(lambda: list(_identities(starts))),
                around=await in_thread(lambda: read_ignores_above(path)) if host else None,
                secrets=await in_thread(lambda: sorted(run.scope.redactor.forms)),
            )
            found = await _run_search(wanted, host, run.scope.redactor)

        shown: list[str] = []
        room, count, last = MAX_SHOWN_BYTES, 0, ""
        for name, number, text in found.hits[: wanted["limit"] - 1]:
            lines = [*([name] if name != last else ()), *([f"{number}|{text}"] if number else ())]
            room -= sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)
            if room < 0 and shown:
                break
            shown += lines
            count, last = count + 1, name
        if not shown:
            return "[nothing found]"
        if count < len(found.hits):
            following = wanted["skip"] + count
            shown.append(f"[there are more matches; narrow the search, or continue with offset={following}]")
        if found.is_stopped:
            shown.append(f"[the search was stopped after {TIME_S:.0f} seconds; narrow it]")
        return replace_surrogates("\n".join(shown))

    return (search_files,)


class _SearchOutput(msgspec.Struct):
    """Parses the output of the search program; an `OutputSink`."""

    limit: int
    hits: list[FileHit] = []
    refusal: str = ""
    is_stopped: bool = False
    pending: bytes = b""

    def add(self, chunk: bytes) -> None:
        *lines, rest = (self.pending + chunk).split(b"\n")
        self.pending = rest[:_MAX_LINE_BYTES]
        for line in lines:
            with suppress(ValueError, RecursionError):  # not a line of ours
                match json.loads(bytes(line)):
                    case [str(path), int(number), str(text)] if len(self.hits) < self.limit:
                        self.hits.append((path, number, text))
                    case str(sentence):
                        self.refusal = sentence
                    case _:
                        pass

    def skip(self, size_bytes: int) -> None:
        """Called if the program printed far more than it should; the rest is dropped."""


def _identities(places: Iterable[Path]) -> Iterator[Identity]:
    """A link, a second name or a mount does not disguise a private place."""
    for place in places:
        with suppress(OSError):
            found = place.stat()
            yield found.st_dev, found.st_ino


async def _run_search(wanted: SearchRequest, host: ToolHost | None, redactor: Redactor) -> _SearchOutput:
    found = _SearchOutput(wanted["limit"])
    try:
        async with asyncio.timeout(TIME_S):
            if host is None:
                code = await _run_outside(wanted, found)
            else:
                command = SandboxCommand(program=(PYTHON, *_ARGUMENTS), cwd="/", is_kept=False, has_input=True)
                started = host.start(command, found)
                try:
                    started.write(json.dumps(wanted).encode())
                    started.close_input()
                    code = (await started.wait()).code
                finally:
                    if started.end is None:
                        await complete(started.kill())
    except TimeoutError:
        if not found.hits:
            raise ToolFailed(f"The search took longer than {TIME_S:.0f} seconds; narrow it.") from None
        found.is_stopped, code = True, 0
    if code == REFUSED:
        raise ToolFailed(redactor.text(found.refusal))
    if code != 0:
        raise ToolFailed(f"The search program failed (exit code {code}). Try again, or narrow the search.")
    return found


async def _run_outside(wanted: SearchRequest, found: _SearchOutput) -> int:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *_ARGUMENTS), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdin is not None  # noqa: S101  (a pipe, as requested)
    assert process.stdout is not None  # noqa: S101
    try:
        with suppress(ConnectionError):  # the program has ended, which the next lines notice
            process.stdin.write(json.dumps(wanted).encode())  # not as an argument: others can read those
            await process.stdin.drain()
            process.stdin.close()
        while chunk := await process.stdout.read(1 << 16):
            found.add(chunk)
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await complete(process.communicate())  # the end is noticed only after the rest was read
