"""Runs a script of the model, which may call some of the agent's tools by name. Sent to where it runs.

Standard input brings lines of JSON: what to run, then the answers to its calls. A call is a line on standard output
that begins with a word that only this program and the agent know. Imports nothing of ours.
"""

import json
import os
import sys
import threading
import types
from typing import Any


class ToolError(Exception):
    """A tool failed or was refused."""


class ScriptCalls:
    def __init__(self, answers: int, mark: str) -> None:
        self._answers = os.fdopen(answers, "r", encoding="utf-8")
        self._mark = mark
        self._turn = threading.Lock()

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        with self._turn:  # one thread at a time: each answer belongs to the call before it
            sys.stdout.flush()
            os.write(1, f"\n{self._mark}{json.dumps({'name': name, 'arguments': arguments})}\n".encode())
            answer = json.loads(self._answers.readline() or '{"error": "the agent is gone"}')
        if "error" in answer:
            raise ToolError(answer["error"])
        return str(answer["text"])

    def function(self, name: str) -> Any:
        def call_by_name(*positional: Any, **arguments: Any) -> str:
            if positional:
                raise ToolError(f"{name} takes its parameters by name")
            return self.call(name, arguments)

        call_by_name.__name__ = name
        return call_by_name


def main(mark: str, names: list[str], code: str) -> None:
    calls = ScriptCalls(os.dup(0), mark)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    tools = types.ModuleType("talaria_tools")
    functions = {name: calls.function(name) for name in names}
    vars(tools).update(functions, ToolError=ToolError)
    sys.modules["talaria_tools"] = tools
    sys.argv = ["script.py"]
    exec(compile(code, "script.py", "exec"), {"__name__": "__main__", **functions, "ToolError": ToolError})  # noqa: S102
