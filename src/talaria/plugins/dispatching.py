"""Tools of the conversation that is being served, called by plugin code: through the same gate as the model's calls."""

import json
from typing import Any

from talaria.model.errors import ModelCorrectable
from talaria.model.ids import new_call_id
from talaria.model.messages import ToolCall
from talaria.plugins.bridge import Bridge
from talaria.runtime.current import serving
from talaria.tools.executor import Executor
from talaria.waiting import in_thread


def dispatch(bridge: Bridge, tool: str, arguments: dict[str, Any]) -> str:
    """The result; what goes wrong is in it, as `{"error": …}`. From a thread."""
    here = serving.get()
    if here is None:
        return _error("There is no conversation here whose tools could be used.")
    call = ToolCall(new_call_id(), tool, json.dumps(arguments, default=str))
    return bridge.run(lambda: _run(call, here.tools()))


async def _run(call: ToolCall, tools: Executor) -> str:
    try:
        prepared = await in_thread(lambda: tools.prepare(call))  # it may look at the file system
        await tools.admit(prepared)
    except ModelCorrectable as refusal:
        return _error(str(refusal))
    result = await tools.run(prepared)
    return _error(result.text) if result.is_error else result.text


def _error(sentence: str) -> str:
    return json.dumps({"error": sentence}, ensure_ascii=False)
