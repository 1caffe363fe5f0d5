"""Requests that are sent again with the same Idempotency-Key: by the client itself, or after its connection broke."""

import asyncio
from collections.abc import AsyncIterator
from threading import Event
from typing import Any

import httpx2
from tests.scenarios.api.served_api import ServedApi, chat_body, said_by

from talaria.testing import Failure, Faults, Reply, call
from talaria.testing.harness import Harness

WRITING = Reply(calls=(call("terminal", command="echo once >> mark"),))
KEY = {"Idempotency-Key": "key 1"}


def marks(harness: Harness) -> str:
    return "".join(file.read_text() for file in harness.home.parent.glob("people/**/mark"))


async def test_repeated_request_gets_the_same_answer_and_the_effect_happens_once(api: ServedApi) -> None:
    api.model.say(WRITING, "Written.", Failure(400))
    async with api.http() as http:
        first = await http.post("/v1/chat/completions", json=chat_body("write"), headers=KEY)
        again = await http.post("/v1/chat/completions", json=chat_body("write"), headers=KEY)
        streamed = await http.post("/v1/chat/completions", json=chat_body("write"), headers={"Idempotency-Key": "2"})
    assert first.json()["choices"][0]["message"]["content"] == "Written."
    assert (again.json()["id"], again.json()["choices"]) == (first.json()["id"], first.json()["choices"])
    assert streamed.status_code == 502, "another key is another request"
    assert marks(api.harness) == "once\n"


async def test_repeated_request_can_be_streamed_as_well(api: ServedApi) -> None:
    api.model.say(WRITING, "Written.")
    async with api.openai() as client:
        asked: dict[str, Any] = {"model": "talaria", "input": "write", "stream": True, "extra_headers": KEY}
        answers: list[list[Any]] = []
        for _ in range(2):
            create: Any = client.responses.create
            stream: AsyncIterator[Any] = await create(**asked)
            answers.append([event async for event in stream])
    first, again = answers
    assert first[-1].type == "response.completed"
    assert again[-1] == first[-1]
    assert marks(api.harness) == "once\n"


async def test_same_key_for_another_request_is_refused(api: ServedApi) -> None:
    api.model.say("Hello.", "Hello, you.")
    other = await api.add_token("other")
    async with api.http() as http, api.http(other) as theirs:
        assert (await http.post("/v1/chat/completions", json=chat_body("hello"), headers=KEY)).status_code == 200
        changed = await http.post("/v1/chat/completions", json=chat_body("bye"), headers=KEY)
        elsewhere = await http.post("/v1/responses", json={"model": "talaria", "input": "hello"}, headers=KEY)
        of_other = await theirs.post("/v1/chat/completions", json=chat_body("bye"), headers=KEY)
    for one in (changed, elsewhere):
        assert (one.status_code, one.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert of_other.json()["choices"][0]["message"]["content"] == "Hello, you.", "their key is their own"


async def test_requests_with_one_key_at_the_same_time_are_one(api: ServedApi) -> None:
    """Also if each of them would begin a conversation, or branch one."""
    api.model.say("First.", "Second.", "Other.", "Fourth.")
    history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "First."}]
    bodies = [chat_body("one"), chat_body("two"), chat_body("edited")]
    for body in bodies[1:]:
        body["messages"] = [*history, *body["messages"]]
    async with api.http() as http:

        async def send(body: Any, key: str) -> Any:
            return (await http.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": key})).json()

        for number, body in enumerate(bodies):
            answers = await asyncio.gather(*(send(body, f"key {number}") for _ in range(8)))
            assert len({one["id"] for one in answers}) == 1
            assert len({one["choices"][0]["message"]["content"] for one in answers}) == 1
        unlike = await asyncio.gather(*(send(chat_body(text), "key 4") for text in ("this", "that")))
        (refused,) = [one["error"]["code"] for one in unlike if "error" in one]
        assert refused == "idempotency_key_reused"
    assert len(api.model.requests) == 4
    assert len(await api.sessions()) == 3


async def test_conversation_takes_one_of_several_requests_that_come_at_the_same_time(api: ServedApi) -> None:
    until_then = Event()
    api.model.say("First.", Reply("Second.", faults=Faults(held_by=until_then)))
    named = {"X-Talaria-Session": "tab"}
    try:
        async with api.http() as http:
            await http.post("/v1/chat/completions", json=chat_body("one"), headers=named)

            async def send(number: int) -> httpx2.Response:
                response = await http.post("/v1/chat/completions", json=chat_body(f"two {number}"), headers=named)
                if response.status_code == 409 and (tries := len(refused) + 1) <= 5:
                    refused.append(tries)
                if len(refused) == 5:
                    until_then.set()
                return response

            refused: list[int] = []
            answers = await asyncio.gather(*map(send, range(6)))
    finally:
        until_then.set()
    assert sorted(one.status_code for one in answers) == [200, *[409] * 5]


async def test_same_history_with_several_questions_at_the_same_time_branches(api: ServedApi) -> None:
    api.model.say("First.", *["Second."] * 4)
    history = chat_body("one")["messages"] + [{"role": "assistant", "content": "First."}]
    async with api.http() as http:
        await http.post("/v1/chat/completions", json=chat_body("one"))

        async def send(number: int) -> httpx2.Response:
            asked = {"role": "user", "content": f"two {number}"}
            return await http.post("/v1/chat/completions", json={"model": "talaria", "messages": [*history, asked]})

        answers = await asyncio.gather(*map(send, range(4)))
    assert len({one.headers["X-Talaria-Session"] for one in answers}) == 4
    assert all(len(said_by("assistant", api.sent(number))) == 1 for number in range(1, 5))


async def test_client_that_lost_its_connection_gets_the_answer_with_its_key(api: ServedApi) -> None:
    until_then = Event()
    api.model.say(Reply("Hello.", faults=Faults(held_by=until_then)))
    try:
        async with api.http() as http:
            asked = asyncio.create_task(http.post("/v1/chat/completions", json=chat_body(), headers=KEY))
            await api.wait_for_model(1)
            asked.cancel()
            await asyncio.wait([asked])
            until_then.set()
            again = await http.post("/v1/chat/completions", json=chat_body(), headers=KEY)
    finally:
        until_then.set()
    assert again.json()["choices"][0]["message"]["content"] == "Hello."
    assert len(api.model.requests) == 1


async def test_client_repeats_by_itself_when_the_rate_is_limited(api: ServedApi) -> None:
    token = await api.add_token("slow", ["chat"], requests_per_minute=60)
    api.model.say("Hello.")
    async with api.http(token) as http, api.openai(token, max_retries=5) as client:
        while (refused := await http.get("/v1/models")).status_code == 200:
            pass
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 0
        assert (await client.responses.create(model="talaria", input="hello")).output_text == "Hello."
