"""The tool host of a strict sandbox, whose mounts can be changed while it runs: guards are put back, and places are
opened and withdrawn.

A guard is a read-only mount. When somebody outside replaces the file under it, the kernel removes the mount together
with the old file, so the list of mounts tells what has lost its guard.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.tools.sandbox.base import Guarded
from talaria.tools.sandbox.channel import HostChannel
from talaria.tools.sandbox.inside import folders_between

if TYPE_CHECKING:
    from talaria.tools.sandbox.ports import Ports

GUARD_S = 20.0
HAS_ENDED = "the sandbox has ended"
_PROGRAM = Path(__file__).with_name("guard_program.py")
_OCTAL = re.compile(r"\\([0-7]{3})")


class StrictHost:
    def __init__(self, channel: HostChannel, roots: tuple[Path, ...]) -> None:
        """`roots`: what commands can write."""
        self._channel = channel
        self._roots = roots
        self._ports: Ports | None = None
        self.start = channel.start
        self.listener = channel.listener

    @property
    def is_alive(self) -> bool:
        return self._channel.is_alive

    @property
    def ports(self) -> "Ports":
        from talaria.tools.sandbox.ports import Ports  # noqa: PLC0415  (few sessions open one)

        if self._ports is None:
            self._ports = Ports(self._find_host, partial(self._change, "show"), self.withdraw)
        return self._ports

    async def close(self) -> None:
        if self._ports is not None:
            await self._ports.aclose()

    def find_unguarded(self, places: Sequence[Path]) -> tuple[Path, ...]:
        return self.missing(places) if self.is_alive else ()

    def missing(self, places: Sequence[Path]) -> tuple[Path, ...]:
        """Those that are neither on a read-only mount nor in a folder on one; all, if the sandbox has ended."""
        read_only: dict[Path, bool] = {}
        """By mount point: the newest mount there counts."""
        with suppress(OSError):
            for line in Path(f"/proc/{self._find_host()}/mountinfo").read_bytes().splitlines():
                _, _, _, _, point, options, *_ = os.fsdecode(line).split(" ")
                at = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), point))
                read_only[at] = "ro" in options.split(",")
        nearest = {place: next((one for one in (place, *place.parents) if one in read_only), place) for place in places}
        return tuple(place for place in places if not read_only.get(nearest[place]))

    async def guard(self, places: Sequence[Path], links: Mapping[Path, Path] = MappingProxyType({})) -> Guarded:
        missing = await in_thread(lambda: self.missing(places))
        if not missing and not links:
            return Guarded(done=tuple(places))
        host = await in_thread(self._find_host)
        if host is None:
            return Guarded(failed=tuple((place, HAS_ENDED) for place in missing))
        ways = {str(place): [*map(str, folders_between(self._roots, (place,)))] for place in missing}
        shown = {str(file): str(link) for file, link in links.items()}
        answer = await _run_program({"pid": host, "places": ways, "links": shown})
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
        if place not in self._roots:
            self._roots = (*self._roots, place)
        return await self._change("show", place, place, guarded)

    async def withdraw(self, place: Path) -> str:
        self._roots = tuple(root for root in self._roots if root != place)
        return await self._change("withdraw", place, place)

    async def _change(self, change: str, source: Path, place: Path, guarded: Sequence[Path] = ()) -> str:
        host = await in_thread(self._find_host)
        if host is None:
            return HAS_ENDED
        ways = {str(one): [*map(str, folders_between((place,), (one,)))] for one in guarded}
        order = {"pid": host, "change": change, "path": str(place), "places": ways, "source": str(source)}
        answer = await _run_program(order)
        return answer if isinstance(answer, str) else next((reason for _, reason in answer.failed), "")

    def _find_host(self) -> int | None:
        """The process number of the tool host out here: the first process inside, a child of bubblewrap's child. Those
        two themselves may not be inspected."""
        pid = self._channel.pid
        for _ in range(2):
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            except OSError:
                return None
            if not children:
                return None
            pid = int(children[0])
        return pid


class _Answer(msgspec.Struct, frozen=True):
    done: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    stopped: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    redirected: tuple[str, ...] = ()


async def _run_program(order: Mapping[str, object]) -> _Answer | str:
    """The program's answer, or why there is none."""
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
            output, errors = await process.communicate(json.dumps(order).encode())
    except TimeoutError:
        return f"it took longer than {GUARD_S:.0f} seconds"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await complete(process.wait())
    try:
        return msgspec.convert(json.loads(output), _Answer)  # not with msgspec: names need not be UTF-8
    except (ValueError, msgspec.MsgspecError):
        return errors.decode("utf-8", "replace").strip().rpartition("\n")[2] or f"exit code {process.returncode}"
