"""An MCP server over stdio that misbehaves on demand: `python odd_server.py BEHAVIOUR [FOLDER]`.

It speaks the protocol of 2025 by hand, so that it can also break it. What it receives it writes to FOLDER/received, one
JSON document a line; FOLDER/starts counts how often it was started.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEHAVIOUR = sys.argv[1]
FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else None
STARTS = FOLDER / "starts" if FOLDER else None


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"The tool {name}.", "inputSchema": {"type": "object"}, **more}


def tools() -> list[Any]:
    match BEHAVIOUR:
        case "bad-schemas":
            return [tool("list", inputSchema=[1]), tool("string", inputSchema={"type": "string"}), tool("good"), 7]
        case "duplicates":
            return [tool("twin", description="the first"), tool("twin"), tool("a.b"), tool("a_b")]
        case "hints":
            reads = tool("reads", annotations={"readOnlyHint": True})
            adds = tool("adds", annotations={"idempotentHint": True, "destructiveHint": False})
            return [reads, adds, tool("plain"), tool("odd", annotations="no")]
        case "changing" if FOLDER and (FOLDER / "changed").exists():
            return [tool("new")]
        case "regex":
            schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
            return [tool("slow", outputSchema=schema)]
        case _:
            return [tool("work")]


def started() -> int:
    if STARTS is None:
        return 1
    with STARTS.open("a") as file:
        file.write("x")
    return STARTS.stat().st_size


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def note(message: dict[str, Any]) -> None:
    if FOLDER:
        with (FOLDER / "received").open("a") as file:
            file.write(json.dumps(message) + "\n")


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], **more}


def hang() -> None:
    while True:
        time.sleep(60)


def die(code: int, words: str = "") -> None:
    sys.stderr.write(words)
    sys.stderr.flush()
    os._exit(code)


def write_without_end() -> None:
    while True:
        sys.stdout.write("x" * 1_000_000)


def make_noise() -> dict[str, Any]:
    for number in range(20_000):
        send(method="notifications/message", params={"level": "info", "data": f"line {number}"})
        sys.stdout.write("not even JSON\n")
    sys.stderr.write("z" * 1_000_000)
    return text("still here")


def change() -> dict[str, Any]:
    if FOLDER:
        (FOLDER / "changed").touch()
    send(method="notifications/tools/list_changed")
    return text("changed")


RESULTS: dict[str, Callable[[], dict[str, Any] | None]] = {
    "silent": lambda: None,
    "dies-in-call": lambda: die(3, "the disk is on fire\n"),
    "secret": lambda: die(4, f"cannot log in with {os.environ['TOKEN']}\n"),
    "huge-line": write_without_end,
    "huge-answer": lambda: text("y" * 300_000),
    "noise": make_noise,
    "changing": change,
    "failing": lambda: text("the well is dry", isError=True),
    "nonsense": lambda: {"content": [{"type": "hologram", "data": 1}]},
    "regex": lambda: text("done", structuredContent={"a": "a" * 24 + "!"}),
    "structured": lambda: {"content": [], "structuredContent": {"wells": 3}},
}


def call(id: int, arguments: dict[str, Any]) -> None:
    if BEHAVIOUR == "refusing":
        send(id=id, error={"code": -32602, "message": "there is no such well"})
        return
    if BEHAVIOUR == "dies-once" and STARTS and STARTS.stat().st_size == 1:
        die(3)
    make = RESULTS.get(BEHAVIOUR, lambda: text(f"did {json.dumps(arguments)}"))
    result = make()
    if result is not None:
        send(id=id, result=result)


def answer(message: dict[str, Any]) -> None:
    id = message.get("id")
    match message["method"]:
        case "server/discover" if BEHAVIOUR == "leaves-at-discover":
            die(5)
        case "initialize":
            about = {"name": "odd", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            version = message["params"]["protocolVersion"]
            send(id=id, result={"protocolVersion": version, "capabilities": capabilities, "serverInfo": about})
        case "tools/list":
            if BEHAVIOUR == "endless-pages":
                send(id=id, result={"tools": [tool(f"t{time.monotonic_ns()}")], "nextCursor": "more"})
            else:
                send(id=id, result={"tools": tools()})
        case "tools/call":
            call(message["id"], message["params"].get("arguments") or {})
        case _ if id is not None:
            send(id=id, error={"code": -32601, "message": "Method not found"})
        case _:
            pass


def main() -> None:
    number = started()
    if BEHAVIOUR == "mute" or (BEHAVIOUR == "mute-at-first" and number == 1):
        hang()
    if BEHAVIOUR == "fickle" and FOLDER and (FOLDER / "down").exists():
        sys.exit(6)
    if BEHAVIOUR == "crashing":
        sys.stderr.write("no such table: wells\n")
        sys.exit(1)
    if BEHAVIOUR == "brood":  # one child in its group, one that has left it
        for detached in (False, True):
            child = subprocess.Popen(["sleep", "600"], start_new_session=detached, stdin=subprocess.DEVNULL)
            with (Path(sys.argv[2]) / "children").open("a") as file:
                file.write(f"{child.pid}\n")
    for line in sys.stdin:
        message = json.loads(line)
        note(message)
        if "method" in message:
            answer(message)
    if BEHAVIOUR == "stubborn":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hang()


main()
