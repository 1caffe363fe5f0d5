"""A tool of a plugin tells an error as JSON: for people that call has failed."""

from typing import Any

import pytest

from talaria.core.ids import CallId
from talaria.core.messages import Outcome, ToolCall
from talaria.tools.base import OpenGate, Run, Scope
from talaria.tools.executor import Executor
from talaria.tools.function import SchemaTool, parse_schema
from talaria.tools.registry import Toolbox


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ('{"error": "no such bird\\nlook again"}', Outcome("failed", "no such bird")),
        ('{"birds": 2}', None),
        ('{"error": 3}', None),
        ('{"error": ', None),
    ],
)
async def test_an_error_told_as_json_is_a_failure_for_people_alone(
    scope: Scope, answer: str, outcome: Outcome | None
) -> None:
    async def handler(_: dict[str, Any], __: Run) -> str:
        return answer

    birds = SchemaTool(parse_schema({"name": "birds"}), handler)
    result = await Executor(Toolbox([birds]), OpenGate(), scope).call(ToolCall(CallId("c"), "birds", "{}"))
    assert (result.text, result.is_error, result.outcome) == (answer, False, outcome)
