"""Several keys at one provider, seen from the server that they are shown to."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from talaria.core.errors import KeyRejected
from talaria.testing.servers.model_server import Answer, ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Failure

if TYPE_CHECKING:
    from tests.contracts.routes.conftest import OpenHarness

POOL = ["sk-one", "sk-two", "sk-three"]


def shown(server: ModelServer) -> list[str]:
    return [request.headers.get("authorization", "").removeprefix("Bearer ") for request in server.requests]


def work_at(server: ModelServer, **more: Any) -> dict[str, Any]:
    return {"work": {"base_url": server.base_url, "api_keys": POOL, **more}}


def guarded(**refusals: int) -> "ModelServer":
    """Refuses these keys with these statuses, every time."""

    def respond(request: RecordedRequest) -> Answer:
        status = refusals.get(request.headers["authorization"].removeprefix("Bearer sk-"))
        return Failure(status) if status else "fine"

    return ModelServer(respond=respond)


async def test_a_key_is_replaced_at_its_second_rate_limit(harness: "OpenHarness") -> None:
    with guarded(one=429) as server:
        async with harness(model={"default": "work:m"}, providers=work_at(server)) as here:
            assert (await here.ask()).text == "fine"
            assert len(here.clock.slept) == 1
            assert (await here.ask()).text == "fine"
        assert shown(server) == ["sk-one", "sk-one", "sk-two", "sk-two"]


async def test_a_key_without_money_is_replaced_at_once(harness: "OpenHarness") -> None:
    with guarded(one=402, two=402) as server:
        async with harness(model={"default": "work:m"}, providers=work_at(server)) as here:
            assert (await here.ask()).text == "fine"
            assert here.clock.slept == []
        assert shown(server) == POOL


async def test_only_when_every_key_is_used_up_a_fallback_takes_over(
    harness: "OpenHarness", fallback: ModelServer
) -> None:
    with guarded(one=402, two=401, three=402) as server:
        providers = work_at(server) | {"house": {"base_url": fallback.base_url, "api_key": "sk-house"}}
        fallback.say("meanwhile", "still")
        async with harness(model={"default": "work:m"}, providers=providers, fallback_providers="house:s") as here:
            assert (await here.ask()).model == "house:s"
            assert (await here.ask()).text == "still"
        assert shown(server) == [*POOL, "sk-two"]  # the primary is asked again, with the key that may wake soonest
    assert shown(fallback) == ["sk-house", "sk-house"]


@pytest.mark.clause("R-11")
@pytest.mark.parametrize(
    ("named_s", "after_s", "asked"),
    [
        pytest.param((None, None), 0, "sk-one", id="no key named a time"),
        pytest.param((300, None), 0, "sk-two", id="the key that named none is asked"),
        pytest.param((300, 100), 99, None, id="both named a time"),
        pytest.param((300, 100), 101, "sk-two", id="the time of the last one has passed"),
        pytest.param((100, 300), 101, "sk-one", id="the time of the first one has passed"),
    ],
)
async def test_with_all_keys_limited_the_next_turn_asks_the_primary_unless_each_key_was_given_a_time(
    harness: "OpenHarness",
    fallback: ModelServer,
    named_s: tuple[int | None, int | None],
    after_s: int,
    asked: str | None,
) -> None:
    named = dict(zip(POOL, named_s, strict=False))

    def respond(request: RecordedRequest) -> Answer:
        seconds = named[request.headers["authorization"].removeprefix("Bearer ")]
        return Failure(429, headers={} if seconds is None else {"retry-after": str(seconds)})

    with ModelServer(respond=respond) as server:
        providers = {
            "work": {"base_url": server.base_url, "api_keys": POOL[:2]},
            "house": {"base_url": fallback.base_url},
        }
        fallback.say("one", "two")
        async with harness(model={"default": "work:m"}, providers=providers, fallback_providers="house:s") as here:
            assert (await here.ask()).text == "one"
            assert set(shown(server)) == set(POOL[:2])
            before = len(server.requests)
            here.clock.advance(after_s)
            assert (await here.ask()).text == "two"
            assert shown(server)[before : before + 1] == ([asked] if asked else [])


async def test_without_a_fallback_the_last_refusal_is_told_without_any_key(harness: "OpenHarness") -> None:
    def respond(request: RecordedRequest) -> Answer:
        return Failure(401, {"error": {"message": f"bad key {request.headers['authorization']}"}})

    with ModelServer(respond=respond) as server:
        async with harness(model={"default": "work:m"}, providers=work_at(server)) as here:
            report = await here.ask()
            assert isinstance(report.error, KeyRejected)
            told = f"{report!r} {report.error} {here.events!r} {await here.entries()!r} {here.app!r}"
            assert not [key for key in POOL if key in told]


@pytest.mark.parametrize(("rotation", "expected"), [("fill_first", ["sk-one"] * 3), ("round_robin", POOL)])
async def test_turns_share_the_keys_as_the_settings_say(
    harness: "OpenHarness", primary: ModelServer, rotation: str, expected: list[str]
) -> None:
    primary.say("1", "2", "3")
    async with harness(model={"default": "work:m"}, providers=work_at(primary, rotation=rotation)) as here:
        for _ in range(3):
            await here.ask()
    assert shown(primary) == expected


async def test_numbered_names_in_the_environment_are_a_pool(harness: "OpenHarness") -> None:
    environment = {"GROQ_API_KEY": "sk-one", "GROQ_API_KEY_2": "sk-two"}
    with guarded(one=402) as server:
        providers = {"groq": {"base_url": server.base_url}}
        async with harness(environment, model={"default": "groq:m"}, providers=providers) as here:
            assert (await here.ask()).text == "fine"
        assert shown(server) == ["sk-one", "sk-two"]


async def test_a_key_command_is_run_again_when_its_key_has_expired(harness: "OpenHarness", tmp_path: Path) -> None:
    count = tmp_path / "count"
    command = f"echo x >> {count}; printf sk-; wc -l < {count}"
    with guarded(**{"1": 401}) as server:
        providers = {"work": {"base_url": server.base_url, "key_command": command}}
        async with harness(model={"default": "work:m"}, providers=providers) as here:
            assert (await here.ask()).text == "fine"
            assert (await here.ask()).text == "fine"
        assert shown(server) == ["sk-1", "sk-2", "sk-2"]


@pytest.mark.parametrize(
    ("command", "says"),
    [("exit 7", "failed with exit code 7"), ("true", "printed no key"), ("echo a; echo b", "more than one line")],
)
async def test_a_key_command_that_brings_no_key_is_told_in_one_sentence(
    harness: "OpenHarness", primary: ModelServer, command: str, says: str
) -> None:
    providers = {"work": {"base_url": primary.base_url, "key_command": command}}
    async with harness(model={"default": "work:m"}, providers=providers) as here:
        report = await here.ask()
        assert says in str(report.error)
    assert primary.requests == []


async def test_keys_never_travel_to_another_provider(harness: "OpenHarness", fallback: ModelServer) -> None:
    """Neither those of the pool, nor the one under `model:`, nor those of the environment."""
    with guarded(one=402, two=402, three=402) as server:
        providers = work_at(server) | {"house": {"base_url": fallback.base_url}}
        entries = ["house:s", {"provider": "custom", "model": "x", "base_url": f"{fallback.url}/v1/v1"}]
        fallback.say(Failure(400))
        async with harness(
            {"OPENAI_API_KEY": "sk-env"},
            model={"default": "work:m", "api_key": "sk-one"},
            providers=providers,
            fallback_providers=entries,
        ) as here:
            await here.ask()
    assert shown(fallback) == ["", ""]


async def test_what_a_key_command_leaves_running_does_not_keep_us_waiting(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    providers = {"work": {"base_url": primary.base_url, "key_command": "sleep 100 & echo sk-made"}}
    primary.say("fine")
    async with harness(model={"default": "work:m"}, providers=providers) as here:
        assert (await here.ask()).text == "fine"
    assert shown(primary) == ["sk-made"]


async def test_when_no_key_can_be_made_those_at_hand_are_tried(harness: "OpenHarness", primary: ModelServer) -> None:
    primary.say("fine")
    async with harness(model={"default": "work:m"}, providers=work_at(primary, key_command="exit 1")) as here:
        assert (await here.ask()).text == "fine"
    assert shown(primary) == ["sk-one"]
