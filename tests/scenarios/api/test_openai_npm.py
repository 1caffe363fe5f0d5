"""The official client of npm: chat, responses, streams, errors and retries."""

import asyncio
import json
from pathlib import Path

import pytest
from tests import npm_packages
from tests.scenarios.api.served_api import ServedApi

SCRIPT = Path(__file__).parent / "openai_client.mjs"


@pytest.fixture
def node() -> Path:
    found = npm_packages.find_node()
    if found is None or not npm_packages.is_installed("openai"):
        pytest.skip("needs Node and the npm package openai: python -m tests.npm_packages")
    return found


async def test_program_in_javascript_asks_with_the_client_of_openai(api: ServedApi, node: Path) -> None:
    slow = await api.add_token("slow", requests_per_minute=60)
    api.model.say("Hello.", "Hello again.", "A response.", "Another response.", "Later.")
    process = await asyncio.create_subprocess_exec(
        *(node, SCRIPT),
        env={"URL": api.url, "TOKEN": api.token, "SLOW_TOKEN": slow, "PACKAGES": str(npm_packages.FOLDER)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    got = json.loads(printed)
    assert got.pop("events")[-1] == "response.completed"
    assert got == {
        "models": ["talaria", "talaria-plain"],
        "chat": "Hello.",
        "streamed": "Hello again.",
        "tokens": 15,
        "response": "A response.",
        "deltas": "Another response.",
        "sameConversation": True,
        "background": "Later.",
        "unauthorized": ["AuthenticationError", 401, "invalid_token", None],
        "unknown": ["NotFoundError", 404, "response_not_found", None],
        "malformed": ["BadRequestError", 400, "invalid_value", "messages"],
        "limited": ["RateLimitError", 429, "rate_limit", None],
        "retried": 2,
    }
    assert len(await api.sessions()) == 3
