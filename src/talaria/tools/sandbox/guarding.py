"""Guards in a strict sandbox that runs: whether they are still there, and putting them back.

A guard is a read-only mount. When somebody outside replaces the file under it, the kernel takes the mount away with the
old file, so the list of mounts tells what has lost its guard.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.tools.sandbox.base import Guarded
from talaria.tools.sandbox.inside import on_the_way

GUARD_S = 20.0
_PROGRAM = Path(__file__).with_name("guard_program.py")
_OCTAL = re.compile(r"\\([0-7]{3})")


class Guards:
    """Of one sandbox, for as long as it runs."""

    def __init__(self, pid: int, roots: tuple[Path, ...]) -> None:
        """`pid`: of bubblewrap itself. `roots`: what commands can write."""
        self._pid = pid
        self._roots = roots

    def find_host(self) -> int | None:
        """The tool host, by its number out here."""
        return _tool_host(self._pid)

    def missing(self, places: Sequence[Path]) -> tuple[Path, ...]:
        """Those on which no read-only mount is, nor on a folder around them; all, if the sandbox has ended."""
        read_only = _mounts(_tool_host(self._pid))
        return tuple(place for place in places if not read_only.get(_nearest(place, read_only)))

    async def renew(self, places: Sequence[Path], links: Mapping[Path, Path] = MappingProxyType({})) -> Guarded:
        missing = await in_thread(lambda: self.missing(places))
        if not missing and not links:
            return Guarded(done=tuple(places))
        host = await in_thread(self.find_host)
        if host is None:
            return Guarded(failed=tuple((place, "the sandbox has ended") for place in missing))
        ways = {str(place): [*map(str, on_the_way(self._roots, (place,)))] for place in missing}
        shown = {str(file): str(link) for file, link in links.items()}
        answer = await _run_program(json.dumps({"pid": host, "places": ways, "links": shown}).encode())
        if isinstance(answer, str):
            return Guarded(failed=tuple((place, answer) for place in missing))
        kept = (place for place in places if place not in missing)
        return Guarded(
            done=(*kept, *map(Path, answer.done)),
            failed=tuple((Path(place), reason) for place, reason in answer.failed),
            stopped=answer.stopped,
            linked=tuple(map(Path, answer.linked)),
            redirected=tuple(map(Path, answer.redirected)),
        )

    async def share(self, place: Path, guarded: Sequence[Path] = ()) -> str:
        """Returns why it cannot be; empty: commands can write there from now on, but for what is guarded."""
        if place not in self._roots:
            self._roots = (*self._roots, place)
        return await self._change("show", place, guarded)

    async def show(self, source: Path, place: Path) -> str:
        """A file of this machine, in the sandbox under another path. Returns why it cannot be."""
        return await self._change("show", place, source=source)

    async def withdraw(self, place: Path) -> str:
        self._roots = tuple(root for root in self._roots if root != place)
        return await self._change("withdraw", place)

    async def _change(self, change: str, place: Path, guarded: Sequence[Path] = (), source: Path | None = None) -> str:
        host = await in_thread(self.find_host)
        if host is None:
            return "the sandbox has ended"
        ways = {str(one): [*map(str, on_the_way((place,), (one,)))] for one in guarded}
        order = {"pid": host, "change": change, "path": str(place), "places": ways, "source": str(source or place)}
        answer = await _run_program(json.dumps(order).encode())
        return answer if isinstance(answer, str) else next((reason for _, reason in answer.failed), "")


class _Answer(msgspec.Struct, frozen=True):
    done: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    stopped: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    redirected: tuple[str, ...] = ()


async def _run_program(order: bytes) -> _Answer | str:
    """Or why there is no answer."""
    words = (sys.executable, "-I", "-S", str(_PROGRAM))
    pipe = asyncio.subprocess.PIPE
    environment = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}  # and no secret
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=environment
        )
    except OSError as fault:
        return f"{sys.executable}: {fault.strerror}"
    try:
        async with asyncio.timeout(GUARD_S):
            said, fault = await process.communicate(order)
    except TimeoutError:
        return f"it took longer than {GUARD_S:.0f} seconds"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await complete(process.wait())
    try:
        return msgspec.convert(json.loads(said), _Answer)  # not by msgspec: names need not be UTF-8
    except (ValueError, msgspec.MsgspecError):
        return fault.decode("utf-8", "replace").strip().rpartition("\n")[2] or f"exit code {process.returncode}"


def _tool_host(pid: int) -> int | None:
    """The first process inside: a child of bubblewrap's child. Those two themselves may not be looked into."""
    for _ in range(2):
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        if not children:
            return None
        pid = int(children[0])
    return pid


def _mounts(pid: int | None) -> dict[Path, bool]:
    """All mount points as a process sees them, and whether the newest mount there is read-only."""
    try:
        lines = Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines() if pid is not None else ()
    except OSError:
        return {}
    found: dict[Path, bool] = {}
    for line in lines:
        _, _, _, _, point, options, *_ = os.fsdecode(line).split(" ")
        found[Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), point))] = "ro" in options.split(",")
    return found


def _nearest(place: Path, mounts: dict[Path, bool]) -> Path:
    return next((one for one in (place, *place.parents) if one in mounts), place)
