"""Small work beside the conversation: its own model first, the conversation's behind it."""

from typing import TYPE_CHECKING, Any

import pytest
from tests.ports import reserved_port

from talaria.core.entries import MessageAdded
from talaria.core.errors import BadConfig, BadInput, LimitReached, RequestRejected
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.runtime.auxiliary import title_for
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Reply

if TYPE_CHECKING:
    from tests.contracts.routes.conftest import OpenHarness

    from talaria.testing.harness import Harness

SESSION = SessionId("s1")


def settings(primary: ModelServer, fallback: ModelServer, **more: Any) -> dict[str, Any]:
    providers = {"work": {"base_url": primary.base_url}, "small": {"base_url": fallback.base_url}}
    return {"model": {"default": "work:big"}, "providers": providers, **more}


async def asked(here: "Harness") -> str:
    answer = await here.app.auxiliary("summary").ask("Sum this up.", system="Be short.", session=SESSION)
    return answer.text


@pytest.mark.parametrize("named", [{"default": "small:s"}, {"summary": "small:s", "default": "work:x"}])
async def test_it_asks_the_model_that_is_set_for_its_purpose(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer, named: dict[str, str]
) -> None:
    async with harness(**settings(primary, fallback, auxiliary=named)) as here:
        fallback.say("short")
        assert await asked(here) == "short"
    (request,) = fallback.requests
    assert request.json["model"] == "s"
    assert "tools" not in request.json


async def test_where_its_own_model_is_not_running_the_conversations_answers_at_once(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    with reserved_port() as port:
        given = settings(primary, fallback, auxiliary={"default": "small:s"})
        given["providers"]["small"] = {"base_url": f"http://127.0.0.1:{port}/v1"}
        async with harness(**given) as here:
            primary.say("from the main one")
            assert await asked(here) == "from the main one"
            assert here.clock.slept == []


async def test_without_one_of_its_own_it_asks_the_conversations_model(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(**settings(primary, fallback)) as here:
        primary.say("short")
        assert await asked(here) == "short"


async def test_when_its_own_model_fails_the_conversations_answers(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(**settings(primary, fallback, auxiliary={"default": "small:s"})) as here:
        fallback.say(Failure(401))
        primary.say("from the main one")
        assert await asked(here) == "from the main one"
        fallback.say(Failure(400))
        primary.say(Failure(400))
        with pytest.raises(RequestRejected, match="No model answered"):
            await asked(here)


async def test_what_it_costs_is_counted_and_capped_but_the_conversation_does_not_see_it(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(**settings(primary, fallback, limits={"session": {"tokens": 1_000}})) as here:
        primary.say(Reply("hello"), Reply("short"))
        await here.ask()
        await here.app.auxiliary("judge").ask("Is it good?", system="Judge.", session=here.live.id)
        (row,) = await here.app.store.spending.usage("session")
        assert row.calls == 2
        assert len([entry for entry in await here.entries() if isinstance(entry, MessageAdded)]) == 2
        with pytest.raises(LimitReached, match="this conversation"):
            await here.app.auxiliary("judge").ask("x" * 9_000, system="Judge.", session=here.live.id)


async def test_a_misspelt_model_is_told(harness: "OpenHarness", primary: ModelServer, fallback: ModelServer) -> None:
    with pytest.raises(BadConfig, match="did you mean 'small'"):
        async with harness(**settings(primary, fallback, auxiliary={"title": "smal:s"})):
            pass


async def test_a_model_without_its_key_is_told_and_the_conversations_model_takes_over(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(**settings(primary, fallback, auxiliary={"summary": "groq:x"})) as here:
        assert len(here.app.left_out) == 1
        assert "GROQ_API_KEY" in here.app.left_out[0]
        primary.say("hello", "short")
        assert (await here.ask()).text == "hello"
        assert await asked(here) == "short"


@pytest.mark.parametrize(
    ("written", "title"),
    [
        ("Trees by the lake", "Trees by the lake"),
        ('\n"**Trees by the lake.**"\nExplanation: …', "Trees by the lake"),
        ("word " * 40, "word " * 11 + "word…"),
        (' \n""', "Conversation"),
    ],
)
async def test_a_title_is_one_short_line(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer, written: str, title: str
) -> None:
    async with harness(**settings(primary, fallback, auxiliary={"title": "small:s"})) as here:
        fallback.say(written)
        made = await title_for(SESSION, [user("What trees grow by the lake?")], here.app.auxiliary("title"))
        assert made == title.strip()
        assert len(made) <= 60
        with pytest.raises(BadInput):
            await title_for(SESSION, [], here.app.auxiliary("title"))
