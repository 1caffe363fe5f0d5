"""How hard the model thinks, chosen for one conversation: it changes with the next message, and nothing else does."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.contracts.pool.test_gateway_bounds import PEOPLE, Company, key
from tests.scenarios.gateway.conftest import harness as gateway_house
from tests.scenarios.gateway.conftest import run_folder

from talaria.core.ids import SessionId
from talaria.runtime.session import LiveSession
from talaria.testing.harness import Harness

__all__ = ["gateway_house", "run_folder"]

HERE, OTHER, *_ = PEOPLE


@pytest.fixture
def company(gateway_house: Harness) -> Company:
    return Company(gateway_house)


def efforts(house: Harness) -> Sequence[str | None]:
    return [request.json.get("reasoning_effort") for request in house.model.requests]


def system_prompts(house: Harness) -> Sequence[Any]:
    return [request.json["messages"][0] for request in house.model.requests]


def live_of(company: Company, session: SessionId) -> LiveSession:
    live = company.gateway_app.gateway.pool.find(session)
    assert live is not None
    return live


@pytest.mark.clause("C-06")
@pytest.mark.clause("C-11")
@pytest.mark.clause("C-12")
async def test_it_changes_between_two_messages_and_live_session_and_prompt_stay_the_same(company: Company) -> None:
    house = company.house
    async with house.serve():
        await company.hears(HERE)
        live = live_of(company, await house.session_of(key(HERE)))
        setup = live.config
        for given in ("high", "none", "default"):
            said = await company.says(HERE, f"/reasoning {given}")
            assert "this conversation" in said
            await company.hears(HERE)
        assert live_of(company, live.id) is live
        assert live.config == setup
    assert efforts(house) == [None, "high", "none", None]
    assert all(prompt == system_prompts(house)[0] for prompt in system_prompts(house))


async def test_it_outlives_a_release_from_the_pool_an_undone_turn_and_a_restart(company: Company) -> None:
    house = company.house
    house.config["gateway"]["max_live_sessions"] = 1
    async with house.serve():
        await company.hears(HERE)
        await company.says(HERE, "/think low")
        await company.hears(OTHER)
        assert await company.kept() == [OTHER]
        await company.hears(HERE)
        await company.says(HERE, "/reasoning high")
        await company.says(HERE, "/undo")
        await company.hears(HERE)
    async with house.serve():
        assert "high" in await company.says(HERE, "/reasoning")
        await company.hears(HERE)
        await company.says(HERE, "/branch")
        await company.hears(HERE)
        await company.says(HERE, "/new")
        await company.hears(HERE)
    assert efforts(house) == [None, None, "low", "high", "high", "high", None]


async def test_it_can_be_chosen_before_the_first_message_by_who_is_no_admin(company: Company) -> None:
    house = company.house
    house.config["model"]["reasoning_effort"] = "low"
    settings = {**house.telegram.settings, "allowed_users": list(PEOPLE), "admin_users": [HERE]}
    house.add_platform("telegram", settings)
    async with house.serve():
        assert "low" in await company.says(OTHER, "/reasoning")
        await company.says(OTHER, "/reasoning minimal")
        assert "minimal" in await company.says(OTHER, "/reasoning")
        await company.hears(OTHER)
        await company.hears(HERE)
        await company.says(OTHER, "/reasoning default")
        await company.hears(OTHER)
    assert efforts(house) == ["minimal", "low", "low"]


async def test_what_is_not_an_effort_changes_nothing(company: Company) -> None:
    async with company.house.serve():
        said = await company.says(HERE, "/reasoning hard")
        assert said == "'hard' is not a reasoning effort. Use /reasoning none, minimal, low, medium, high or default."
        await company.hears(HERE)
    assert efforts(company.house) == [None]
