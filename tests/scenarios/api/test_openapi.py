"""The OpenAPI document is true: requests that are made from it are answered as it says."""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.scenarios.api.served_api import EVERY_SCOPE, ServedApi, api_harness, chat_body

from talaria.api.operations import OPERATIONS
from talaria.testing import ModelServer

SEED = "1"
EXAMPLES = "20"
"""Of each operation, besides those that cover its document."""
CONFIG = """
[[operations]]
include-path = "/v1/responses/{{id}}"
parameters = {{ id = "{id}" }}

[[operations]]
include-path = "/v1/responses/{{id}}/cancel"
parameters = {{ id = "{id}" }}
"""
QUESTIONS = ("/v1/chat/completions", "/v1/responses")
"""Who must have spoken last is more than their schema can say, so some that fit it are refused."""
ENDLESS = "/v1/sessions/{id}/events"
OTHERS = ("--exclude-path", ENDLESS, *(word for path in QUESTIONS for word in ("--exclude-path", path)))
ASKING = (
    *(word for path in QUESTIONS for word in ("--include-path", path)),
    *("--exclude-checks", "positive_data_acceptance"),
)


@pytest.mark.parametrize("chosen", [OTHERS, ASKING], ids=["others", "questions"])
async def test_requests_made_from_the_document_are_answered_as_it_says(tmp_path: Path, chosen: tuple[str, ...]) -> None:
    with ModelServer(respond=lambda _: "Hello.") as model:
        async with api_harness(tmp_path, model) as harness, ServedApi.serve(harness) as api:
            token = await api.add_token("all", EVERY_SCOPE, requests_per_minute=1_000_000)
            async with api.http(token) as http:
                asked = await http.post(QUESTIONS[0], json=chat_body())
                id = asked.headers["X-Talaria-Run"].replace("run_", "resp_")
            (tmp_path / "schemathesis.toml").write_text(CONFIG.format(id=id))
            process = await asyncio.create_subprocess_exec(
                *(str(Path(sys.executable).parent / "st"), "run", f"{api.url}/openapi.json"),
                *("-H", f"Authorization: Bearer {token}", "--max-examples", EXAMPLES, "--seed", SEED),
                *("--no-color", "--generation-database", "none", "--phases", "coverage,fuzzing"),
                *("--continue-on-failure", *chosen),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=tmp_path,
            )
            told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()


def test_each_operation_is_in_one_of_these_runs() -> None:
    assert {*QUESTIONS, ENDLESS} < {one.path for one in OPERATIONS}
