"""Questions, stop and steer over the API, for turns of this process and of another one."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pytest
from tests.scenarios.api.served_api import SCOPES, ServedApi, api_harness, chat_body, events_of

from talaria.app.build import open_application
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.runtime.turn_signals import SignalSender
from talaria.testing import Faults, ModelServer, RecordedRequest, Reply, call
from talaria.testing.harness import Harness

CHAT = "/v1/chat/completions"
DANGEROUS = Reply(calls=(call("terminal", command="echo done > mark"),))


@pytest.fixture
async def asking(harness: Harness) -> AsyncGenerator[ServedApi]:
    """Every command needs a yes."""
    harness.config["approvals"] = {"ask": ["terminal"]}
    harness.model.say(DANGEROUS, "Finished.")
    async with ServedApi.serve(harness) as served:
        yield served


def has_run(api: ServedApi) -> bool:
    return any(api.harness.home.parent.glob("people/**/mark"))


def result(api: ServedApi) -> str:
    return next(str(one["content"]) for one in reversed(api.sent()) if one["role"] == "tool")


@asynccontextmanager
async def a_run(
    api: ServedApi, http: httpx2.AsyncClient, text: str = "do it"
) -> AsyncGenerator[tuple[str, "asyncio.Queue[tuple[str, Mapping[str, Any]]]", "asyncio.Task[None]"]]:
    """One in the background: its id, its events as they come, and the watcher, which ends with it."""
    begun = await http.post("/v1/responses", json={"model": "talaria", "input": text, "background": True})
    assert begun.status_code == 200
    run = begun.headers["X-Talaria-Run"]
    seen: asyncio.Queue[tuple[str, Mapping[str, Any]]] = asyncio.Queue()

    async def watch() -> None:
        async with http.stream("GET", f"/v1/runs/{run}/events") as response:
            async for event in events_of(response):
                seen.put_nowait(event)

    watching = asyncio.create_task(watch())
    try:
        yield run, seen, watching
        async with asyncio.timeout(60):
            await watching
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def question_of(seen: "asyncio.Queue[tuple[str, Mapping[str, Any]]]") -> Mapping[str, Any]:
    async with asyncio.timeout(60):
        while True:
            name, content = await seen.get()
            if name == "live" and content["event"]["type"] == "question":
                return content["event"]["question"]


def rest_of(seen: "asyncio.Queue[tuple[str, Mapping[str, Any]]]") -> Sequence[tuple[str, Mapping[str, Any]]]:
    return [seen.get_nowait() for _ in range(seen.qsize())]


async def test_without_the_scope_nobody_can_be_asked(asking: ServedApi) -> None:
    async with asking.http() as http:
        response = await http.post(CHAT, json=chat_body("do it"))
        assert response.json()["choices"][0]["message"]["content"] == "Finished."
        assert not has_run(asking)
        assert "said no" in result(asking)


async def test_question_is_shown_and_answered(asking: ServedApi) -> None:
    token = await asking.add_token("admin-phone", (*SCOPES, "approve"))
    async with asking.http(token) as http:
        async with a_run(asking, http) as (run, seen, _):
            question = await question_of(seen)
            assert "echo done > mark" in str(question)
            assert not has_run(asking)
            wrong = await http.post(f"/v1/runs/{run}/approve", json={"question": "x", "answer": "once"})
            assert wrong.json()["state"] == "late"
            odd = await http.post(f"/v1/runs/{run}/approve", json={"question": question["id"], "answer": "maybe"})
            assert odd.json()["outcome"] == "The answer must be one of no, once, session."
            given = await http.post(f"/v1/runs/{run}/approve", json={"question": question["id"], "answer": "once"})
            assert (given.status_code, given.json()["state"]) == (200, "obeyed")
        closed = [one for name, one in rest_of(seen) if name == "live" and one["event"]["type"] == "question_closed"]
        assert "api:admin-phone" in str(closed)
        assert has_run(asking)
        late = await http.post(f"/v1/runs/{run}/approve", json={"question": question["id"], "answer": "no"})
        assert late.json()["state"] == "late"
        described = (await http.get(f"/v1/runs/{run}")).json()
        assert (described["status"], described["output_text"]) == ("completed", "Finished.")


@pytest.mark.parametrize("words", ["", "Use another file."])
async def test_no_is_told_to_the_model(asking: ServedApi, words: str) -> None:
    token = await asking.add_token("phone", (*SCOPES, "approve"))
    async with asking.http(token) as http:
        async with a_run(asking, http) as (run, seen, _):
            question = await question_of(seen)
            session = (await http.get(f"/v1/runs/{run}")).json()["session_id"]
            given = await http.post(
                f"/v1/sessions/{session}/approve", json={"question": question["id"], "answer": "no", "text": words}
            )
            assert given.json()["state"] == "obeyed"
        assert not has_run(asking)
        assert (words or "said no") in result(asking)


async def test_others_cannot_answer_for_the_one_who_was_asked(asking: ServedApi) -> None:
    token = await asking.add_token("phone", (*SCOPES, "approve"))
    other = await asking.add_token("other", (*SCOPES, "approve"))
    async with asking.http(token) as http, asking.http(other) as theirs, asking.http() as weak:
        async with a_run(asking, http) as (run, seen, _):
            question = await question_of(seen)
            session = (await http.get(f"/v1/runs/{run}")).json()["session_id"]
            body = {"question": question["id"], "answer": "once"}
            for path in (f"/v1/runs/{run}/approve", f"/v1/sessions/{session}/approve"):
                assert (await theirs.post(path, json=body)).status_code == 404
                assert (await weak.post(path, json=body)).status_code == 403
            assert not has_run(asking)
            assert (await http.post(f"/v1/runs/{run}/stop")).status_code == 200
        assert not has_run(asking)


async def test_answer_comes_from_another_process(asking: ServedApi) -> None:
    token = await asking.add_token("phone", (*SCOPES, "approve"))
    async with asking.http(token) as http, open_application(asking.harness.settings()) as app:
        async with a_run(asking, http) as (run, seen, _):
            question = await question_of(seen)
            session = SessionId((await http.get(f"/v1/runs/{run}")).json()["session_id"])
            sender = SignalSender(app.store, app.links.changes, app.links.folder, by="local", surface="terminal")
            assert (await sender.answer(session, question["id"], "once", "", "")).state == "obeyed"
        assert has_run(asking)


async def test_run_is_steered_and_stopped(tmp_path: Path) -> None:
    until_then = Event()

    def respond(request: RecordedRequest) -> Reply:
        """Goes on until it has read the note, and then thinks."""
        if b"And look up." in request.body:
            return Reply("Never.", faults=Faults(held_by=until_then))
        rounds = len(request.json["messages"])
        return Reply(calls=(call("search_files", pattern=f"x{rounds}"),), faults=Faults(first_byte_delay_s=0.05))

    try:
        with ModelServer(respond=respond) as model:
            async with api_harness(tmp_path, model) as harness, ServedApi.serve(harness) as api, api.http() as http:
                async with a_run(api, http) as (run, _, _):
                    await api.wait_for_model(1)
                    steered = await http.post(f"/v1/runs/{run}/steer", json={"text": "And look up."})
                    assert steered.status_code == 202
                    blank = await http.post(f"/v1/runs/{run}/steer", json={"text": " "})
                    assert (blank.status_code, blank.json()["error"]["param"]) == (400, "text")
                    await harness.until(lambda: "And look up." in str(api.sent()))
                    assert (await http.get(f"/v1/runs/{run}")).json()["status"] == "in_progress"
                    assert (await http.post(f"/v1/runs/{run}/stop")).status_code == 200
                assert (await http.get(f"/v1/runs/{run}")).json()["status"] == "cancelled"
                late = await http.post(f"/v1/runs/{run}/steer", json={"text": "Too late."})
                assert (late.status_code, late.json()["state"]) == (200, "late")
                assert (await http.post(f"/v1/runs/{run}/stop")).json()["status"] == "cancelled"
    finally:
        until_then.set()


async def test_turn_of_another_process_is_watched_steered_and_stopped(api: ServedApi) -> None:
    first, second = Event(), Event()
    admin = await api.add_token("boss", ["admin"])
    looking = Reply(calls=(call("search_files", pattern="x"),), faults=Faults(held_by=first))
    api.model.say("Hello.", looking, Reply("Never.", faults=Faults(held_by=second)))
    try:
        async with api.http() as http, api.http(admin) as boss, open_application(api.harness.settings()) as app:
            session = SessionId((await http.post(CHAT, json=chat_body())).headers["X-Talaria-Session"])
            row = await app.store.sessions.get(session)
            assert row is not None
            await api.app.gateway.forget(session)
            live = app.session(row, cwd=app.home, origin="terminal")
            turn = asyncio.create_task(live.ask(user("think long")))
            await api.wait_for_model(2)
            path, note = f"/v1/sessions/{session}/steer", {"text": "And look up."}
            refused = await http.post(path, json=note)  # the person at the terminal may more than it
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_yours")
            steered = await boss.post(path, json=note)
            assert (steered.status_code, steered.json()["state"]) == (202, "new")
            first.set()
            await api.wait_for_model(3)
            busy = await http.post(CHAT, json=chat_body(), headers={"X-Talaria-Session": session})
            assert (busy.status_code, busy.json()["error"]["code"]) == (409, "session_busy")
            assert (await http.delete(f"/v1/sessions/{session}")).status_code == 409
            assert (await boss.post(f"/v1/sessions/{session}/stop")).json()["state"] == "obeyed"
            assert (await turn).outcome == "interrupted"
            assert (await http.post(f"/v1/sessions/{session}/stop")).json()["state"] == "late"
    finally:
        first.set()
        second.set()


async def test_events_of_a_run_go_on_where_they_were_left(api: ServedApi) -> None:
    api.model.say(Reply(calls=(call("search_files", pattern="x"),)), "First.", "Second.")
    async with api.http() as http:
        first = await http.post(CHAT, json=chat_body("one"), headers={"X-Talaria-Session": "tab"})
        await http.post(CHAT, json=chat_body("two"), headers={"X-Talaria-Session": "tab"})
        path = f"/v1/runs/{first.headers['X-Talaria-Run']}/events"
        whole = (await http.get(path)).text
        blocks = [one for one in whole.split("\n\n") if one.startswith("id: ")]
        assert '"First."' in blocks[-2]
        assert "turn_ended" in blocks[-1]
        assert "Second." not in whole
        for number, block in enumerate(blocks):
            id = block.splitlines()[0].removeprefix("id: ")
            rest = await http.get(path, headers={"Last-Event-ID": id})
            assert [one for one in rest.text.split("\n\n") if one.startswith("id: ")] == blocks[number + 1 :]


async def test_events_of_a_run_that_was_dropped_end(api: ServedApi) -> None:
    until_then = Event()
    api.model.say(Reply("First.", faults=Faults(held_by=until_then)))
    named = {"X-Talaria-Session": "tab"}
    try:
        async with api.http() as http:
            first = asyncio.create_task(http.post(CHAT, json=chat_body("one"), headers=named))
            await api.wait_for_model(1)
            async with a_run_in(http, "tab") as (run, watching):
                assert (await http.post(f"/v1/runs/{run}/stop")).json()["status"] == "cancelled"
                async with asyncio.timeout(60):
                    await watching
            async with asyncio.timeout(60):
                await http.get(f"/v1/runs/{run}/events")
            until_then.set()
            assert (await first).status_code == 200
    finally:
        until_then.set()


@asynccontextmanager
async def a_run_in(http: httpx2.AsyncClient, tab: str) -> AsyncGenerator[tuple[str, "asyncio.Task[httpx2.Response]"]]:
    body = {"model": "talaria", "input": "two", "background": True, "conversation": tab}
    run = (await http.post("/v1/responses", json=body)).headers["X-Talaria-Run"]
    watching = asyncio.create_task(http.get(f"/v1/runs/{run}/events"))
    try:
        yield run, watching
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def test_conversations_are_listed_renamed_forked_and_deleted(api: ServedApi) -> None:
    api.model.say("First.", "Second.", "Third.")
    async with api.http() as http:
        ids = [(await http.post(CHAT, json=chat_body(text))).headers["X-Talaria-Session"] for text in ("one", "two")]
        page = (await http.get("/v1/sessions", params={"limit": 1})).json()
        assert ([one["id"] for one in page["data"]], page["has_more"]) == ([ids[1]], True)
        rest = (await http.get("/v1/sessions", params={"after": page["last_id"]})).json()
        assert ([one["id"] for one in rest["data"]], rest["has_more"]) == ([ids[0]], False)
        renamed = await http.patch(f"/v1/sessions/{ids[0]}", json={"title": "A tab"})
        assert renamed.json()["title"] == "A tab"
        taken = await http.patch(f"/v1/sessions/{ids[1]}", json={"title": "A tab"})
        assert (taken.status_code, taken.json()["error"]["param"]) == (409, "title")
        assert ids[0] not in taken.text, "it may be somebody else's"
        forked = await http.post(f"/v1/sessions/{ids[0]}/fork")
        assert (forked.status_code, forked.json()["parent"]) == (201, ids[0])
        entries = (await http.get(f"/v1/sessions/{ids[0]}/entries")).json()["data"]
        ends = [one["seq"] for one in entries if one["entry"]["type"] == "turn_ended"]
        assert len(ends) == 1
        at_end = await http.post(f"/v1/sessions/{ids[0]}/fork", json={"until": ends[0], "title": "A copy"})
        assert at_end.json()["title"] == "A copy"
        for wrong in (0, ends[0] - 1, ends[0] + 1, 2**63):
            refused = await http.post(f"/v1/sessions/{ids[0]}/fork", json={"until": wrong})
            assert (refused.status_code, refused.json()["error"]["param"]) == (404, "until")
        found = (await http.get("/v1/sessions/search", params={"q": "First"})).json()["data"]
        assert ids[0] in [one["session_id"] for one in found]
        assert (await http.delete(f"/v1/sessions/{ids[0]}")).json()["deleted"] is True
        assert (await http.get(f"/v1/sessions/{ids[0]}")).status_code == 404
        runs = (await http.get("/v1/runs")).json()["data"]
        assert [one["session_id"] for one in runs] == [ids[1], ids[0]] or len(runs) == 1
