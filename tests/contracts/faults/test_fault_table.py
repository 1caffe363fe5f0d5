"""Whatever a model endpoint does, a turn ends: in an answer, at the fallback, or in a few clear sentences. Soon, within
its budget, with a legal transcript, and without a tool that ran on half a call.

Each row is one misbehaviour of the first model. It is played on every wire, with a healthy second model and without.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest

from talaria.app.build import open_store
from talaria.config.schema import LimitsConfig, TurnCapConfig
from talaria.core.errors import LimitReached
from talaria.providers.base import WireName
from talaria.testing.servers.model_server import Answer, ModelServer
from talaria.testing.servers.scripted_replies import Call, Failure, Faults, Reply, call

if TYPE_CHECKING:
    from tests.contracts.faults.conftest import OpenWorld

CHAT, RESPONSES, MESSAGES = WIRES = ("openai_chat", "openai_responses", "anthropic_messages")
FINE = "Fine."
NOW = 1_800_000_000.0
"""When a `ManualClock` begins."""
RETRIES_S = 9.0
"""The longest that two retries wait of themselves."""
RECONNECT_S = 24.0
"""The longest that two retries, new connections, and two more retries wait."""
OVERLOADED = {"type": "overloaded_error", "code": "server_error", "message": "Overloaded"}
ENDLESS = {"code": "9" * 5000, "message": "Oh no"}
EXPIRED = {"type": "authentication_error", "code": "invalid_api_key", "message": "Expired"}
ELSEWHEN = Failure(429, headers={"retry-after": formatdate(NOW - 970, usegmt=True), "date": formatdate(NOW - 1000)})
NO_UTF8 = b'{"error": {"message": "So nicht f\xfcr uns."}}'
GARBLED = Reply("Half an answer.", chunk_chars=99, faults=Faults(swap=(b"answer", b"\xe4nswer")))
GARBLED_CALL = Reply(calls=(Call("call_1", "note", '{"n": "answer"}'),), faults=Faults(swap=(b"answer", b"\xe4nswer")))
GARBLED_THOUGHT = Reply(FINE, thinking="Hm.", faults=Faults(swap=(b"summary_text", b"summ\xe4ry_text")))
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body><h1>Oh no</h1></body></html>"


@dataclass(frozen=True)
class Row:
    name: str
    first: tuple[Answer, ...] = ()
    then: Answer = FINE
    """For ever, after `first`."""
    says: str = ""
    """What people are told when nobody else can answer; nothing if the first model answers in the end."""
    asked: int = 1
    """How many requests the first model gets."""
    left_after: int | None = None
    """How many it gets when there is a second model, if it is not waited for as long then."""
    waits_s: float = 0.0
    """At most, in all."""
    naps: tuple[float, ...] | None = None
    """How long it waits each time when nobody else can be asked, where that is certain."""
    runs: tuple[int, ...] = ()
    """What the tool runs with."""
    results: str = ""
    """What the model reads of its calls."""
    text: str = r"Fine\."
    wires: tuple[WireName, ...] = WIRES
    is_streaming: bool = True


def always(name: str, answer: Answer, says: str, asked: int = 1) -> Row:
    return Row(name, then=answer, says=says, asked=asked, waits_s={3: RETRIES_S, 6: RECONNECT_S}.get(asked, 0.0))


def once(name: str, answer: Answer) -> Row:
    return Row(f"{name}, once", (answer,), asked=2, waits_s=3.0)


def called(name: str, answer: Reply, **more: Any) -> Row:
    """An answer with calls; the model reads their results and says that all is fine."""
    return Row(name, (answer,), asked=2, **more)


def refused(name: str, answer: Answer, says: str) -> Iterator[Row]:
    """What asking again would not change: told, or the second model asked, after one request."""
    yield always(name, answer, says)
    yield replace(once(name, answer), says=says, asked=1, waits_s=0.0)


def passing(name: str, answer: Answer, says: str, asked: int = 3, left_after: int | None = None) -> Iterator[Row]:
    """What may pass: a few more requests."""
    yield replace(always(name, answer, says, asked), left_after=left_after)
    yield replace(once(name, answer), left_after=left_after)


def slow_down(name: str, header: str, said: str, *naps: float) -> Iterator[Row]:
    """Waits as long as it is asked to."""
    limit = Failure(429, headers={header: said})
    after = {"left_after": 1, "waits_s": sum(naps)}
    yield replace(always(f"429 with {name}", limit, "asks us to slow down", len(naps) + 1), naps=naps, **after)
    yield replace(once(f"429 with {name}", limit), naps=naps[:1], **after)


def unclear(name: str, said: str) -> Iterator[Row]:
    """Waits as it would without a word."""
    return passing(
        f"429 with {name}", Failure(429, headers={"retry-after": said}), "asks us to slow down", left_after=1
    )


def page(body: bytes, content_type: str, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(headers=named, faults=Faults(raw_body=body, content_type=content_type))


def cut(**faults: Any) -> Reply:
    return Reply("Half an answer about the weather 🌦, and more.", faults=Faults(**faults))


def cut_call(**faults: Any) -> Reply:
    """Its arguments come in pieces of three signs."""
    return Reply(calls=(call("note", n=123456789),), chunk_chars=3, faults=Faults(**faults))


def written(arguments: str) -> Reply:
    return Reply(calls=(Call("call_1", "note", arguments),))


def counts(count: object) -> dict[str, object]:
    """Usage in the words of all three wires."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens")
    caches = ("cache_read_input_tokens", "cache_creation_input_tokens")
    details = ("prompt_tokens_details", "input_tokens_details", "output_tokens_details")
    told: dict[str, object] = dict.fromkeys((*names, *caches), count)
    inner = ("cached_tokens", "reasoning_tokens", "thinking_tokens")
    return told | {name: dict.fromkeys(inner, count) for name in details}


def counted(name: str, usage: object, **more: Any) -> Row:
    return Row(f"usage {name}", then=Reply(FINE, faults=Faults(usage=usage)), **more)


STATUSES = [
    *refused("400", Failure(400), "refused the request"),
    *refused("401", Failure(401), "did not accept the API key .* Check the key in your .env"),
    *refused("402", Failure(402), "requires payment"),
    *refused("403", Failure(403), "does not allow this"),
    *refused("404", Failure(404), "was not found"),
    *passing("404 in HTML", Failure(404, HTML), r"failed \(404\)"),
    *passing("408", Failure(408), "took too long"),
    *refused("413", Failure(413), "too large"),
    *passing("429", Failure(429), "asks us to slow down", left_after=1),
    *slow_down("seconds", "retry-after", "7", 7.0, 7.0),
    *slow_down("a date", "retry-after", formatdate(NOW + 30, usegmt=True), 30.0, 0.0),
    *slow_down("milliseconds", "retry-after-ms", "1500", 1.5, 1.5),
    *slow_down("a moment that has passed", "retry-after", "-5", 0.0, 0.0),
    *slow_down("thirty years", "retry-after", "1000000000", 600.0),
    *unclear("nonsense", "soon; ask my colleague"),
    *unclear("no number", "nan"),
    replace(once("429 with a date by another clock", ELSEWHEN), left_after=1, waits_s=30.0, naps=(30.0,)),
    *passing("500", Failure(500), "is having problems"),
    *passing("500 in HTML", Failure(500, HTML), r"is having problems \(500\)"),
    *passing("500 in another alphabet", Failure(500, NO_UTF8), "is having problems"),
    *passing("502", Failure(502), "is having problems"),
    *passing("503", Failure(503), "is having problems"),
    *passing("529", Failure(529), "is having problems"),
    replace(
        always("503 with seconds", Failure(503, headers={"retry-after": "40"}), "is having problems", 3),
        waits_s=80.0,
        naps=(40.0, 40.0),
    ),
]
CONNECTIONS = [
    *passing("hung up on", Reply(faults=Faults(hang_up=True)), "Cannot reach 127.0.0.1", 6),
    *passing("reset", Reply(faults=Faults(hang_up=True, reset=True)), "Cannot reach 127.0.0.1", 6),
    *passing("cut after the headers", cut(cut_at=0), "broke in the middle", 6),
    *passing("reset after the headers", cut(cut_at=0, reset=True), "broke in the middle", 6),
    *passing("cut in a character", cut(cut_inside="🌦".encode()), "broke in the middle", 6),
    *passing("reset in a character", cut(cut_inside="🌦".encode(), reset=True), "broke in the middle", 6),
    *passing("cut in JSON", cut(cut_inside=b'"delta"'), "broke in the middle", 6),
    *passing("cut in a call", cut_call(cut_inside=b"456"), "broke in the middle", 6),
    *passing("cut before the end", cut_call(cut_before_end=True), "broke in the middle", 6),
    *passing("a failure that is cut", Failure(500, faults=Faults(cut_at=9)), "broke in the middle", 6),
    *passing("ended after the headers", cut(cut_at=0, is_tidy=True), "broke off before its end", 6),
    *passing("ended after an event", cut(cut_inside=b"\n\n", is_tidy=True), "broke off before its end", 6),
    *passing("ended in a character", cut(cut_inside="🌦".encode(), is_tidy=True), "not an answer", 3),
    *passing("ended in a call", cut_call(cut_inside=b"456", is_tidy=True), "not an answer", 3),
]
ANSWERS = [
    *passing("HTML", page(HTML, "text/html"), "not an answer", 3),
    *passing("HTML as a stream", page(HTML, "text/event-stream"), "broke off before its end", 6),
    *passing("nothing", page(b"", "application/json"), "not an answer", 3),
    *passing("nothing as a stream", page(b"", "text/event-stream"), "broke off before its end", 6),
    *passing("some other JSON", page(b'[{"a": 1}]', "application/json"), "not an answer", 3),
    *passing("JSON that ends early", page(b'{"choices": [', "application/json"), "not an answer", 3),
    *passing("bytes", page(bytes(range(128, 256)), "application/octet-stream"), "not an answer", 3),
    *passing("compression that is none", page(b"plain", "text/event-stream", content_encoding="gzip"), "broke", 6),
    *passing("bytes that are no UTF-8", GARBLED, "not an answer", 3),
    *passing("an empty answer", Reply(""), "empty answer"),
    *passing("only reasoning", Reply(thinking="Hm, well."), "empty answer"),
    *refused("only reasoning, to the limit", Reply(thinking="Hm.", stop="length"), r"raise model\.max_tokens"),
    *refused("a refusal", Reply(stop="content_filter"), "refused to answer"),
    *passing(
        "an error after half an answer",
        Reply("Half an answer.", faults=Faults(error_in_stream=OVERLOADED)),
        r"having problems \(in the middle of an answer: Overloaded\)",
    ),
    *refused(
        "a bad key after half an answer",
        Reply("Half.", faults=Faults(error_in_stream=EXPIRED)),
        "did not accept the API key",
    ),
    *passing("an error with a number without end", Reply("Half.", faults=Faults(error_in_stream=ENDLESS)), "Oh no", 3),
    *passing("an error as an answer", page(b'{"error": {"message": "Oh no."}}', "application/json"), "Oh no", 3),
    Row("an answer that was cut short", then=Reply("Fine.", stop="length")),
    Row("a line of 10 MB", then=Reply(FINE, faults=Faults(huge_line_bytes=10 << 20))),
    replace(once("a line without end", Reply(FINE, faults=Faults(huge_line_bytes=33 << 20))), wires=(CHAT,)),
    Row("no end marker", then=Reply(FINE, faults=Faults(omit_end_marker=True)), wires=(CHAT, MESSAGES)),
    *(
        replace(row, wires=(RESPONSES,))
        for row in passing("no end marker", Reply(FINE, faults=Faults(omit_end_marker=True)), "broke off", 6)
    ),
    Row("a stream that stays open", then=Reply(FINE, faults=Faults(stall_at=10**9)), wires=(CHAT,)),
    Row("every event twice", then=Reply(FINE, chunk_chars=99, faults=Faults(twice=True)), text=r"(Fine\.){1,2}"),
]
CALLS = [
    called("a call that the limit cut", replace(cut_call(), stop="length"), results="cut off .* did not run"),
    called("a whole call at the limit", Reply(calls=(call("note", n=1),), stop="length"), results="cut off"),
    called(
        "a hundred calls",
        Reply(calls=tuple(call("note", id=f"call_{n}", n=n) for n in range(100))),
        runs=tuple(range(100)),
        results="".join(f"noted {n}" for n in range(100)),
    ),
    called(
        "two calls with one id",
        Reply(calls=(call("note", n=1), call("note", n=2)), faults=Faults(duplicate_ids=True)),
        runs=(1, 2),
        results="noted 1noted 2",
    ),
    called("calls without ids", Reply(calls=(call("note", id="", n=1), call("note", id="", n=2))), runs=(1, 2)),
    called("a call without a name", Reply(calls=(Call("call_1", "", '{"n": 1}'),)), results="Error"),
    called("a call of nothing that there is", Reply(calls=(call("delete_all", n=1),)), results="Error"),
    called(
        "a good call beside a bad one",
        Reply(calls=(call("note", n=1), Call("call_2", "note", '{"n": '), call("note", id="call_3", n=3))),
        runs=(1, 3),
        results="noted 1Error.*noted 3",
    ),
    called("every event of a call twice", cut_call(twice=True), results="Error", wires=(CHAT, MESSAGES)),
    called("every event of a call twice", cut_call(twice=True), runs=(123456789,), wires=(RESPONSES,)),
    called(
        "a call that nobody said is whole",
        cut_call(swap=(b'"finish_reason":"tool_calls"', b'"finish_reason":null')),
        results="cut off",
        wires=(CHAT,),
    ),
    called(
        "a call that nobody said is whole", cut_call(swap=(b".done", b".gone")), results="cut off", wires=(RESPONSES,)
    ),
    called("a call without an end marker", cut_call(omit_end_marker=True), runs=(123456789,), wires=(CHAT, MESSAGES)),
    *(
        called(f"arguments {arguments!r}", written(arguments), results="Error: The arguments of note are invalid")
        for arguments in (
            *("", " ", "null", "{", "}", "{}", "[]", '"n"', "1", '{"n": 1', '{"n": 1} ok?', '{"n": 1}{"n": 1}'),
            *('{"n": "1"}', '{"n": 1.5}', '{"n": null}', '{"n": 1, "m": 2}', '{"n": NaN}', "{'n': 1}"),
        )
    ),
]
USAGE = [
    Row("usage missing", then=Reply(FINE, usage=None)),
    counted("negative", counts(-7)),
    counted("absurd", counts(10**15)),
    counted("beyond 64 bits", counts(10**30)),
    counted("in words", counts("many")),
    counted("in fractions", counts(1.5)),
    counted("as null", counts(None)),
    counted("as a word", "a lot"),
]
DOCUMENTS = [
    replace(row, name=f"{row.name}, not streamed", is_streaming=False)
    for row in (
        *passing("cut in a character", cut(cut_inside="🌦".encode()), "broke in the middle", 6),
        *passing("cut in a call", cut_call(cut_inside=b"456"), "broke in the middle", 6),
        *passing("HTML", page(HTML, "text/html"), "not an answer", 3),
        *passing("bytes that are no UTF-8", GARBLED, "not an answer", 3),
        *passing("a call that is no UTF-8", GARBLED_CALL, "not an answer", 3),
        *(
            replace(row, wires=(RESPONSES,))
            for row in passing("a thought that is none", GARBLED_THOUGHT, "not an answer")
        ),
        *passing("an empty answer", Reply(""), "empty answer"),
        *passing("only reasoning", Reply(thinking="Hm, well."), "empty answer"),
        called("a call that the limit cut", Reply(calls=(call("note", n=1),), stop="length"), results="cut off"),
        counted("negative", counts(-7)),
        counted("as a word", "a lot"),
    )
]


def table(*rows: Row) -> pytest.MarkDecorator:
    played = [(row, wire) for row in rows for wire in row.wires]
    return pytest.mark.parametrize(("row", "wire"), played, ids=[f"{row.name}-{wire}" for row, wire in played])


@table(*STATUSES, *CONNECTIONS, *ANSWERS, *CALLS, *USAGE, *DOCUMENTS)
async def test_a_turn_ends_well_whatever_the_first_model_does(
    open_world: "OpenWorld", row: Row, wire: WireName, second_says: str | None
) -> None:
    primary = ModelServer(respond=lambda _: row.then)
    primary.say(*row.first)
    async with open_world(primary, wire, second_says=second_says, is_streaming=row.is_streaming) as world:
        report = await world.ask()
        is_left = second_says is not None and bool(row.says or row.left_after)
        asked = row.left_after or row.asked if is_left else row.asked
        if is_left:
            assert (report.error, report.text, report.model) == (None, second_says, "second:model-2")
        elif row.says:
            assert report.outcome == "failed"
            assert re.search(row.says, str(report.error)), str(report.error)
        else:
            assert (report.error, report.model) == (None, "first:model-1")
            assert re.fullmatch(row.text, report.text)
        assert (len(primary.requests), len(world.second.requests)) == (asked, int(is_left))
        assert sum(world.clock.slept) <= row.waits_s
        assert is_left or row.naps in (None, tuple(world.clock.slept))
        assert tuple(sorted(world.runs)) == row.runs
        assert re.search(row.results, "".join(await world.results()))
        if row.is_streaming and not row.name.startswith("every event"):
            assert world.shown == report.text


@pytest.mark.parametrize("count", [10**15, 10**30])
async def test_an_absurd_usage_is_no_harm_on_the_disk(open_world: "OpenWorld", count: int) -> None:
    answer = Reply(FINE, faults=Faults(usage=counts(count)))
    async with open_world(ModelServer(respond=lambda _: answer), open_store=open_store) as world:
        report = await world.ask()
        assert (report.error, report.text) == (None, FINE)


async def test_usage_that_is_absurd_ends_a_turn_with_a_cap_in_one_sentence(open_world: "OpenWorld") -> None:
    primary = ModelServer(respond=lambda _: FINE)
    primary.say(Reply(calls=(call("note", n=1),), faults=Faults(usage=counts(10**15))))
    limits = LimitsConfig(turn=TurnCapConfig(tokens=100_000))
    async with open_world(primary, second_says="I would.", limits=limits) as world:
        report = await world.ask()
        assert isinstance(report.error, LimitReached)
        assert (len(primary.requests), world.runs) == (1, [1])
