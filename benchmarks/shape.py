"""`make shape`: how large the code is, and how much of it a reader meets on five paths. Prints one table.

Sizes come from the source. Paths are run for real, in processes of their own that note each function of ours that
is called (`benchmarks/shape_trace.py`): a Telegram message until it is answered, a line typed at a terminal, a command
that the model runs, a turn that a crash left open, and a setting.
"""

import argparse
import ast
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

from benchmarks.measuring import Lap
from talaria.testing import ModelServer, Reply, call
from talaria.testing.servers.telegram_server import TelegramServer

_ROOT = Path(__file__).parents[1]
_SOURCE = _ROOT / "src" / "talaria"
_TURNS = 20
_RUNS = 11
_DEADLINE_S = 60.0

Trace = tuple[list[str], int]
"""`file:function` of each function of ours in the order of its first call, and how many Python calls there were."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shape", description=__doc__)
    parser.add_argument("--source", action="store_true", help="sizes only, nothing is run")
    given = parser.parse_args()
    for what, value in _sizes():
        print(f"{what:<58} {value}", flush=True)
    if not given.source:
        for what, value in _measured():
            print(f"{what:<58} {value}", flush=True)
    return 0


def _sizes() -> Iterator[tuple[str, str]]:
    texts = {path: path.read_text("utf-8") for path in sorted(_SOURCE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = sum(len(text.splitlines()) for text in texts.values())
    functions = [
        (node.end_lineno or 0) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    cuts = quantiles(functions, n=100)
    yield "files", f"{len(texts)}"
    yield "lines", f"{lines:,}"
    yield "functions: p50 / p90 / p99, lines", f"{median(functions):.0f} / {cuts[89]:.0f} / {cuts[98]:.0f}"
    helpers = sum(_used_once(tree) for tree in trees.values())
    yield "private helpers used once, per 1,000 lines", f"{1000 * helpers / lines:.1f} ({helpers})"
    names = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    yield "public class names with two or more meanings", f"{sum(n > 1 for n in names.values())} of {len(names)}"
    importers = Counter(target for tree in trees.values() for target in _imported(tree))
    modules = [".".join(path.relative_to(_SOURCE.parent).with_suffix("").parts) for path in texts]
    single = sum(importers[name] == 1 for name in modules if not name.endswith("__init__"))
    yield "modules with a single importer", f"{single} of {len(modules)}"


def _used_once(tree: ast.Module) -> int:
    """How many private functions of a module are named there only once, beside where they are defined."""
    used = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return sum(
        node.name.startswith("_") and not node.name.startswith("__") and used[node.name] == 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found


def _measured() -> Iterator[tuple[str, str]]:
    paths: Mapping[str, Callable[[Path], Trace]] = {
        "path of a Telegram message until it is answered": lambda folder: asyncio.run(_telegram(folder)),
        "path of a line at the terminal": _terminal_line,
        "path of a command that the model runs": _command,
        "path of a turn that a crash left open": _resumed,
        "path of a setting": _setting,
    }
    for what, trace in paths.items():
        with tempfile.TemporaryDirectory(prefix="talaria-shape-") as folder:
            functions, calls = trace(Path(folder))
        files = [one.split(":")[0] for one in functions]
        changes = sum(one != other for one, other in pairwise(files))
        yield f"{what}: functions / files / changes", f"{len(functions)} / {len(set(files))} / {changes}"
        if "Telegram" in what:
            yield "Python calls per gateway turn", f"{calls / _TURNS:,.0f}"
    with tempfile.TemporaryDirectory(prefix="talaria-shape-") as folder:
        yield from _one_shot(Path(folder))
        yield "wheel, KB", f"{_wheel_kb(Path(folder))}"


def _environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    own = {"HOME": str(folder), "TALARIA_HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder)}
    return {**kept, **own, "LANG": "C.UTF-8", "PYTHONWARNINGS": "ignore", **more}


def _prepare(folder: Path, config: Mapping[str, object]) -> None:
    (folder / "home").mkdir(mode=0o700, exist_ok=True)
    (folder / "work").mkdir(exist_ok=True)
    (folder / "home" / "config.yaml").write_text(json.dumps(config), "utf-8")


def _model(server: ModelServer) -> dict[str, str]:
    return {
        "default": "scripted",
        "provider": "custom",
        "base_url": server.url,
        "api_key": "key",
        "wire": "openai_chat",
    }


def _traced(folder: Path, *arguments: str, text: str = "") -> Trace:
    """What `talaria ARGUMENTS` calls, from its start to its end."""
    out = folder / "trace.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.shape_trace", str(out), "all", *arguments],
        env=_environment(folder, PYTHONPATH=_python_path()),
        cwd=folder / "work",
        input=text,
        encoding="utf-8",
        capture_output=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    return _read(out)


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))


def _read(out: Path) -> Trace:
    noted = json.loads(out.read_text("utf-8"))
    return noted["functions"], noted["calls"]


async def _telegram(folder: Path) -> Trace:
    """The second message of a chat; and how many calls a turn takes, over twenty more."""
    out = folder / "trace.json"
    with ModelServer() as server:
        async with TelegramServer() as telegram:
            server.say(*[Reply(text=f"Answer {number}.") for number in range(_TURNS + 3)])
            platform = {**telegram.settings, "allowed_users": ["1001"]}
            gateway = {"workspace": str(folder / "people"), "platforms": {"telegram": platform}}
            _prepare(folder, {"model": _model(server), "gateway": gateway})
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.shape_trace", str(out), "signal", "gateway", "run"),
                env=_environment(folder, PYTHONPATH=_python_path()),
                cwd=folder / "work",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            async with asyncio.timeout(_DEADLINE_S):
                await _converse(telegram, 1, 1)
                functions, _ = await _noted(process, out, lambda: _converse(telegram, 2, 2))
                _, calls = await _noted(process, out, lambda: _converse(telegram, 3, _TURNS + 2))
                process.terminate()
                await process.wait()
    return functions, calls


async def _converse(telegram: TelegramServer, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await telegram.say(f"Message {number}")
        await telegram.wait_for(number)
    await asyncio.sleep(0.5)  # what is recorded after the answer belongs to it, too


async def _noted(process: asyncio.subprocess.Process, out: Path, act: Callable[[], Awaitable[None]]) -> Trace:
    process.send_signal(signal.SIGUSR1)
    await asyncio.sleep(0.2)
    await act()
    process.send_signal(signal.SIGUSR2)
    while not out.exists():
        await asyncio.sleep(0.02)
    noted = _read(out)
    out.unlink()
    return noted


def _terminal_line(folder: Path) -> Trace:
    with ModelServer() as server:
        server.say(Reply(text="Hello."))
        _prepare(folder, {"model": _model(server)})
        return _traced(folder, "-q", "hi")


def _command(folder: Path) -> Trace:
    with ModelServer() as server:
        server.say(Reply(calls=(call("terminal", command="echo hello"),)), Reply(text="Done."))
        _prepare(folder, {"model": _model(server)})
        return _traced(folder, "-q", "run it")


def _resumed(folder: Path) -> Trace:
    with ModelServer() as server:
        deadly = "kill -9 $(ps -o ppid= $(ps -o ppid= $PPID))"
        server.say(Reply(calls=(call("terminal", command=deadly),)), Reply(text="Done."))
        _prepare(folder, {"model": _model(server), "terminal": {"backend": "local"}, "approvals": {"mode": "off"}})
        subprocess.run(
            [sys.executable, "-m", "talaria.cli.main", "-q", "run it"],
            env=_environment(folder),
            cwd=folder / "work",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        return _traced(folder, "-c")


def _setting(folder: Path) -> Trace:
    _prepare(folder, {})
    return _traced(folder, "config", "set", "agent.max_turns", "3")


def _one_shot(folder: Path) -> Iterator[tuple[str, str]]:
    with ModelServer() as server:
        server.say(*[Reply(text="Hello.") for _ in range(_RUNS + 2)])
        _prepare(folder, {"model": _model(server)})
        lap = Lap(1)
        command: Sequence[str] = (sys.executable, "-m", "talaria.cli.main", "-q", "hi")
        for _ in range(_RUNS + 1):
            with lap:
                subprocess.run(
                    command,
                    env=_environment(folder),
                    cwd=folder / "work",
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=_DEADLINE_S,
                    check=True,
                )
        script = (
            "import sys; from talaria.cli.main import main; main(['-q', 'hi'])\n"
            "print(len(sys.modules), sum(name.startswith('talaria') for name in sys.modules))"
        )
        ended = subprocess.run(
            [sys.executable, "-c", script],
            env=_environment(folder),
            cwd=folder / "work",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=_DEADLINE_S,
            check=True,
        )
        every, ours = ended.stdout.split()[-2:]
    yield "one-shot: modules loaded, ours among them", f"{every} / {ours}"
    yield "one-shot: ms (median; says something beside `make bench`)", f"{lap.median_ms:.0f}"


def _wheel_kb(folder: Path) -> int:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(_ROOT)],
        check=True,
        capture_output=True,
    )
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        assert opened.namelist()
    return wheel.stat().st_size // 1024


if __name__ == "__main__":
    sys.exit(main())
