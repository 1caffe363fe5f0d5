"""Tools of the conversation that is being served, called by plugin code: through the same gate as the model's calls."""

import json
from typing import Any

from talaria.core.ids import new_call_id
from talaria.core.messages import ToolCall
from talaria.plugins.bridge import Bridge
from talaria.runtime.current import serving
from talaria.tools.executor import Executor


def dispatch(bridge: Bridge, tool: str, arguments: dict[str, Any]) -> str:
    """The result; what goes wrong is in it, as `{"error": …}`. From a thread."""
    here = serving.get()
    if here is None:
        return _error("There is no conversation here whose tools could be used.")
    call = ToolCall(new_call_id(), tool, json.dumps(arguments, default=str))
    return bridge.run(lambda: _run(call, here.tools()))


async def _run(call: ToolCall, tools: Executor) -> str:
    result = await tools.call(call)
    return _error(result.text.removeprefix("Error: ")) if result.is_error else result.text


def _error(sentence: str) -> str:
    return json.dumps({"error": sentence}, ensure_ascii=False)
