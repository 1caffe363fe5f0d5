"""A program: somebody outside replaces `.git/config` and `.git/hooks` while commands run in a strict sandbox. Some of
them hold on to the new ones, each in its own way, and write when all is done.

With the word "guard" the places are guarded in between. Prints what came of it.
"""

import asyncio
import json
import sys
from pathlib import Path

from talaria.testing.patience import PATIENCE_S
from talaria.tools.sandbox.base import Guarded, ToolHost
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

HOLD = """
import ctypes, mmap, os, select, socket, sys, threading
kind, config = sys.argv[1], ".git/config"
def append(path, mark=kind):
    with open(path, "a") as file:
        file.write("#" + mark + chr(10))
def again(descriptor):
    append("/proc/thread-self/fd/%d" % descriptor)
if kind == "writing":
    held = open(config, "a")
    write = lambda: (held.write("#writing" + chr(10)), held.flush())
elif kind == "reading":
    held = os.open(config, os.O_RDONLY)
    write = lambda: again(held)
elif kind == "referring":
    held = os.open(config, os.O_PATH)
    write = lambda: again(held)
elif kind == "mapped":
    with open(config, "r+b") as file:
        held = mmap.mmap(file.fileno(), 0)
    os.closerange(3, 20)  # with the copy that Python keeps
    def write():
        held[:8] = b"#mapped" + bytes([10])
elif kind == "sent":
    one, two = socket.socketpair()
    descriptor = os.open(config, os.O_RDONLY)
    socket.send_fds(one, [b"x"], [descriptor])
    os.close(descriptor)
    write = lambda: again(socket.recv_fds(two, 1, 1)[1][0])
elif kind == "folder":
    os.chdir(".git/hooks")
    write = lambda: append("evil")
elif kind == "descriptor":
    held = os.open(".git/hooks", os.O_RDONLY)
    write = lambda: os.close(os.open("evil2", os.O_CREAT | os.O_WRONLY, dir_fd=held))
elif kind == "thread":
    ready, go = threading.Event(), threading.Event()
    def hold():
        ctypes.CDLL(None).unshare(0x400)
        held = os.open(config, os.O_RDONLY)
        ready.set()
        go.wait()
        again(held)
    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    write = lambda: (go.set(), thread.join())
elif kind == "hopping":
    ours, theirs = os.pipe()
    if os.fork():
        os.close(theirs)
        os.read(ours, 1)  # until none is left
        sys.exit()
    held = os.open(config, os.O_RDONLY)
    print("held", flush=True)
    while not select.select([0], [], [], 0)[0]:
        if os.fork():
            os._exit(0)
    write = lambda: again(held)
elif kind == "inside":
    os.chdir("new/.git")
    write = lambda: append("config", "inside")
elif kind == "bystander":
    write = lambda: append("/tmp/said")
print("held", flush=True)
sys.stdin.readline()
write()
print("wrote", flush=True)
"""
HOLDERS = ("writing", "reading", "referring", "mapped", "sent", "folder", "descriptor", "thread")
KINDS = (*HOLDERS, "hopping", "inside", "bystander")


class Sink:
    def __init__(self) -> None:
        self.text = ""
        self._more = asyncio.Event()

    def add(self, chunk: bytes) -> None:
        self.text += chunk.decode()
        self._more.set()

    def skip(self, size_bytes: int) -> None:
        raise AssertionError(size_bytes)

    async def wait_for(self, words: str) -> None:
        while words not in self.text:
            self._more.clear()
            await self._more.wait()


async def run(host: ToolHost, command: str) -> str:
    sink = Sink()
    await host.start(SandboxCommand(command=command), sink).wait()
    return sink.text


def replace(project: Path) -> None:
    """As `git config` and `mv` do it; and somebody makes a new repository."""
    (project / ".git/new").write_text("[core]\n" + "# by the person\n" * 10)
    (project / ".git/new").rename(project / ".git/config")
    (project / ".git/hooks").rename(project / ".git/old")
    (project / ".git/hooks").mkdir()
    (project / "new/.git").mkdir(parents=True)
    (project / "new/.git/config").write_text("[core]\n")


async def main(project: Path, word: str) -> dict[str, object]:
    for folder in (".git/hooks", "deep"):
        (project / folder).mkdir(parents=True)
    (project / ".git/config").write_text("[core]\n")
    (project / "hold.py").write_text(HOLD)
    view = view_of(project, project.parent / "talaria", TerminalSettings(), {})
    places = (project / ".git/config", project / ".git/hooks", project / "new/.git/config")
    async with asyncio.timeout(60), Bubblewrap().open(view) as host:
        before = host.find_unguarded(places[:2])
        await run(host, "echo kept > /tmp/kept")
        replace(project)
        lost = host.find_unguarded(places)
        sinks = {kind: Sink() for kind in KINDS}
        started = [
            host.start(SandboxCommand(command=f"exec python3 hold.py {kind}", has_input=True, is_kept=False), sink)
            for kind, sink in sinks.items()
        ]
        for kind, sink in sinks.items():
            try:
                await asyncio.wait_for(sink.wait_for("held"), PATIENCE_S)
            except TimeoutError:
                raise AssertionError(f"{kind}: {sink.text}") from None
        came = await host.guard(places) if word == "guard" else Guarded()
        for one in started:
            one.write(b"\n")
        for one in started:
            await one.wait()
        attack = "for f in .git/config .git/hooks/new new/.git/config; do echo '#plain' >> $f; done 2>/dev/null; "
        move = "mv new old && mkdir -p new/.git && cp old/.git/config new/.git && echo '#moved' >> new/.git/config"
        await run(host, f"{attack} ({move}) 2>/dev/null")
        kept = await run(host, "cat /tmp/kept; cat /tmp/said")
        after = host.find_unguarded(places)
    texts = [(project / name / "config").read_text() for name in (".git", "new/.git")]
    marks = {line for text in texts for line in text.splitlines() if line.startswith("#") and line[1] != " "}
    return {
        "before": [str(place.relative_to(project)) for place in before],
        "lost": [str(place.relative_to(project)) for place in lost],
        "written": sorted(marks),
        "hooks": sorted(one.name for one in (project / ".git/hooks").iterdir()),
        "kept": kept,
        "wrote": [kind for kind in KINDS if "wrote" in sinks[kind].text],
        "done": [str(place.relative_to(project)) for place in came.done],
        "failed": [(str(place), reason) for place, reason in came.failed],
        "stopped": sorted(set(came.stopped)),
        "after": [str(place.relative_to(project)) for place in after],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))))
