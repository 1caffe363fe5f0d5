"""Adapters that others wrote for Hermes' gateway, run through our port as if they were platforms of ours."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from tests.contracts.plugins.conftest import Install, OpenHarness, extensions, module, problems_of
from tests.contracts.plugins.courier_service import PICTURE, CourierService
from tests.waiting import until

from talaria.compat.hermes.platforms.plugin_platforms import PluginPlatform, plugin_platforms
from talaria.core.clock import SystemClock
from talaria.core.errors import BadConfig
from talaria.platforms.base import (
    Address,
    Arrival,
    Batch,
    File,
    Kit,
    NotTaken,
    Outbound,
    Platform,
    Quoted,
    Refused,
    Rejected,
    Sender,
    Unsure,
)
from talaria.testing.patience import PATIENCE_S

ROOM = Address("courier", "r1")


def outbound(text: str, where: Address = ROOM, **more: Any) -> Outbound:
    return Outbound(where, text, "key-1", **more)


@dataclass
class Opened:
    platform: Platform
    batches: AsyncIterator[Batch]

    async def next(self) -> Arrival:
        """The next arrival; it is on our disk then."""
        async with asyncio.timeout(PATIENCE_S):
            batch = await anext(self.batches)
        await self.platform.acknowledge(batch)
        (one,) = batch.items
        assert isinstance(one, Arrival)
        return one


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


class Platforms:
    """The platforms of one application."""

    def __init__(self, known: Mapping[str, PluginPlatform], home: Path) -> None:
        self.known = known
        self.kit = Kit(home, SystemClock(), lambda _: True)

    @asynccontextmanager
    async def open(self, name: str, **raw: Any) -> AsyncGenerator[Opened]:
        known = self.known[name]
        async with known.open(known.settings(raw), self.kit) as platform:
            batches = platform.receive(None)
            try:
                yield Opened(platform, batches)
            finally:
                await batches.aclose()


@pytest_asyncio.fixture
async def service() -> AsyncGenerator[CourierService]:
    async with CourierService().running() as service:
        yield service


@asynccontextmanager
async def loaded(harness: OpenHarness, install: Install, name: str, **environment: str) -> AsyncGenerator[Platforms]:
    install(name)
    async with harness(name, environment=environment, clock=SystemClock()) as one:
        known = await plugin_platforms(extensions(one).brought.platforms, environment, SystemClock())
        assert problems_of(one, name) == []
        yield Platforms(known, one.home)


@pytest_asyncio.fixture
async def courier(
    harness: OpenHarness, install: Install, service: CourierService
) -> AsyncGenerator[tuple[Opened, CourierService]]:
    async with AsyncExitStack() as stack:
        platforms = await stack.enter_async_context(loaded(harness, install, "courier"))
        opened = await stack.enter_async_context(platforms.open("courier", url=service.url, token=service.token))
        yield opened, service


# The smallest one.


async def test_a_minimal_adapter_receives_and_sends(harness: OpenHarness, install: Install) -> None:
    async with loaded(harness, install, "parrot") as platforms, platforms.open("parrot") as parrot:
        saying = asyncio.ensure_future(module("parrot").SERVICE.say("hello"))
        came = await parrot.next()
        await saying
        assert (came.text, came.kind, came.sender) == ("hello", "dm", Sender("anna", "Anna"))
        assert came.where == Address("parrot", "room-of-anna")
        assert await parrot.platform.send(outbound("hi", came.where)) == "key-1"
        assert module("parrot").SERVICE.posts == [("room-of-anna", "hi")]
        can = parrot.platform.capabilities
        assert (can.max_chars, can.can_edit, can.can_delete, can.can_type) == (4000, False, False, False)
        assert await parrot.platform.create_thread(came.where, "x") is None
    assert module("parrot").SERVICE.listener is None


async def test_a_message_without_an_id_gets_one_that_only_the_same_message_has(
    harness: OpenHarness, install: Install
) -> None:
    async with loaded(harness, install, "parrot") as platforms, platforms.open("parrot") as parrot:
        ids: list[str] = []
        for text, time in (("hello", 1.0), ("hello", 1.0), ("hello", 2.0), ("hallo", 1.0)):
            saying = asyncio.ensure_future(module("parrot").SERVICE.say(text, timestamp=time))
            ids.append((await parrot.next()).message_id)
            await saying
        assert ids[0] == ids[1]
        assert len({*ids}) == 3


async def test_a_file_is_refused_where_the_adapter_cannot_send_any(
    harness: OpenHarness, install: Install, tmp_path: Path
) -> None:
    file = File(tmp_path / "a.png", "a.png", "image/png")
    async with loaded(harness, install, "parrot") as platforms, platforms.open("parrot") as parrot:
        with pytest.raises(Rejected, match="Parrot cannot send files like a"):
            await parrot.platform.send(outbound("", Address("parrot", "r"), file=file))
        assert module("parrot").SERVICE.posts == []


# One with all that adapters have.


async def test_a_message_is_told_to_be_received_only_when_it_is_on_our_disk(
    courier: tuple[Opened, CourierService],
) -> None:
    opened, service = courier
    first = await service.post("one")
    batch = await anext(opened.batches)
    await service.post("two")
    await opened.platform.show_typing(ROOM)
    await until(lambda: service.typing)
    assert service.got == []
    await opened.platform.acknowledge(batch)
    assert (await opened.next()).text == "two"
    await until(lambda: len(service.got) == 2)
    assert service.got[0] == first


async def test_what_was_not_acknowledged_comes_again_when_it_is_received_again(
    courier: tuple[Opened, CourierService],
) -> None:
    opened, service = courier
    id = await service.post("one")
    await anext(opened.batches)
    again = Opened(opened.platform, opened.platform.receive(None))
    assert (await again.next()).message_id == id


async def test_messages_come_as_they_were_said(courier: tuple[Opened, CourierService]) -> None:
    opened, service = courier
    await service.post("hey", room="r7", user="ben")
    came = await opened.next()
    assert (came.kind, came.where, came.sender.id) == ("dm", Address("courier", "r7"), "ben")
    await service.post("not for us", type="channel", room="r8")
    await service.post("@bot look", type="channel", room="r8", thread="t1", quoted="this?", quotes_bot=True)
    came = await opened.next()
    assert (came.text, came.kind, came.where) == ("look", "group", Address("courier", "r8", "t1"))
    assert came.is_addressed
    assert came.reply_to == Quoted("this?", is_ours=True)
    await service.post("/new")
    assert (await opened.next()).text == "/new"


async def test_the_adapter_leaves_duplicates_and_itself_out(courier: tuple[Opened, CourierService]) -> None:
    opened, service = courier
    await service.post("one", id="p-same")
    assert (await opened.next()).message_id == "p-same"
    await service.post("one", id="p-same")
    await service.post("mine", user="bot")
    await service.post("two")
    assert (await opened.next()).text == "two"


async def test_files_that_came_can_be_fetched(courier: tuple[Opened, CourierService], tmp_path: Path) -> None:
    opened, service = courier
    await service.post("look", files=["/files/cat.png", "/files/notes.txt"])
    picture, notes = (await opened.next()).attachments
    assert (picture.kind, picture.mime) == ("image", "image/png")
    assert notes.kind == "document"
    assert notes.name.endswith("_notes.txt")
    await opened.platform.fetch(picture, tmp_path / "got.png", 1000)
    assert (tmp_path / "got.png").read_bytes() == PICTURE
    with pytest.raises(Rejected, match="larger than 3 bytes"):
        await opened.platform.fetch(notes, tmp_path / "got.txt", 3)
    assert not (tmp_path / "got.txt").exists()
    Path(notes.ref).unlink()
    with pytest.raises(Rejected, match="is gone"):
        await opened.platform.fetch(notes, tmp_path / "got.txt", 1000)


async def test_messages_go_out_with_thread_and_quote_and_are_edited_and_deleted(
    courier: tuple[Opened, CourierService],
) -> None:
    opened, service = courier
    thread = Address("courier", "r1", "m1")
    assert await opened.platform.create_thread(ROOM, "Plans") == thread
    sent = await opened.platform.send(outbound("hi", thread, reply_to="p9"))
    assert service.called("send") == [{"room": "r1", "text": "hi", "quotes": "p9", "thread": "m1"}]
    await opened.platform.edit(sent, outbound("hi!"))
    await opened.platform.delete(sent, ROOM)
    assert service.called("edit") == [{"room": "r1", "id": sent, "text": "hi!"}]
    assert service.called("delete") == [{"room": "r1", "id": sent}]
    can = opened.platform.capabilities
    assert (can.max_chars, can.can_edit, can.can_delete, can.can_type, can.has_threads) == (
        2000,
        True,
        True,
        True,
        True,
    )


async def test_a_file_goes_out_as_the_adapter_can_send_it(
    courier: tuple[Opened, CourierService], tmp_path: Path
) -> None:
    opened, service = courier
    file = tmp_path / "x1"
    file.write_text("content")
    await opened.platform.send(outbound("see", file=File(file, "plan.png", "image/png")))
    assert service.called("send") == [{"room": "r1", "text": "see", "file": "plan.png", "content": "content"}]


async def test_the_adapter_hears_that_a_message_is_accepted_and_answered(
    courier: tuple[Opened, CourierService],
) -> None:
    opened, service = courier
    id = await service.post("do it")
    await opened.next()
    await until(lambda: service.called("react") == [{"id": id, "emoji": "👀"}])
    await opened.platform.send(outbound("another thing"))
    another = await service.post("and this")
    await opened.next()
    await opened.platform.send(outbound("done", reply_to=id))
    await opened.platform.send(outbound("and more of it", reply_to=id))
    await opened.platform.send(outbound("done, too", reply_to=another))
    await until(lambda: len(service.called("react")) == 4)
    assert [(one["id"], one["emoji"]) for one in service.called("react")[1:]] == [
        (another, "👀"),
        (id, "✅"),
        (another, "✅"),
    ]


SLOW_DOWN = web.Response(status=429, headers={"Retry-After": "7"})


@pytest.mark.parametrize(
    ("refusal", "failure", "words", "retry_after_s"),
    [
        (SLOW_DOWN, NotTaken, "did not take it: Too Many Requests", 7.0),
        (web.Response(status=400, text="no such room"), Rejected, "refused it: 400: no such room", None),
        (web.Response(status=413, text="message too long"), Rejected, "too long", None),
        (None, Unsure, "may have taken it: ServerDisconnectedError", None),
    ],
)
async def test_every_refusal_ends_as_promised_and_nothing_is_sent_twice(
    courier: tuple[Opened, CourierService],
    refusal: web.Response | None,
    failure: type[Exception],
    words: str,
    retry_after_s: float | None,
) -> None:
    opened, service = courier
    service.refusals.append(refusal)
    with pytest.raises(failure, match=words) as caught:
        await opened.platform.send(outbound("hi"))
    assert getattr(caught.value, "retry_after_s", None) == retry_after_s
    assert len(service.called("send")) == 1


async def test_a_line_that_breaks_ends_the_stream(courier: tuple[Opened, CourierService]) -> None:
    opened, service = courier
    await service.post("last words")
    await opened.next()
    await service.hang_up()
    with pytest.raises(NotTaken, match="Courier is not usable: the server closed the connection"):
        await opened.next()


async def test_a_wrong_token_is_told_without_the_token(
    harness: OpenHarness, install: Install, service: CourierService
) -> None:
    environment = {"COURIER_URL": service.url, "COURIER_TOKEN": "wrong-token-1234"}
    async with loaded(harness, install, "courier", **environment) as platforms:
        with pytest.raises(Refused, match="Courier refused the token") as caught:
            async with platforms.open("courier"):
                pass
    assert "wrong-token" not in str(caught.value)


async def test_one_account_is_used_by_one_at_a_time(
    harness: OpenHarness, install: Install, service: CourierService
) -> None:
    script = """
import sys
from talaria.compat.hermes.aliases.hermes_gateway import acquire_scoped_lock
print(acquire_scoped_lock("courier-token", sys.argv[1]), flush=True)
sys.stdin.read()
"""
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, service.token),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert other.stdout is not None
    assert await other.stdout.readline() == b"(True, None)\n"
    async with loaded(harness, install, "courier") as platforms:
        with pytest.raises(Refused, match=f"Courier token is in use by process {other.pid}"):
            async with platforms.open("courier", url=service.url, token=service.token):
                pass
        other.kill()
        await other.communicate()
        async with platforms.open("courier", url=service.url, token=service.token):
            pass
        async with platforms.open("courier", url=service.url, token=service.token):
            pass


# Settings.


async def test_the_environment_sets_a_platform_up(
    harness: OpenHarness, install: Install, service: CourierService
) -> None:
    environment = {
        "COURIER_URL": service.url,
        "COURIER_TOKEN": service.token,
        "COURIER_ALLOWED_USERS": "anna, ben",
        "COURIER_ALLOW_ALL_USERS": "no",
        "COURIER_HOME_ROOM": "room:1",
    }
    async with loaded(harness, install, "courier", **environment) as platforms:
        known = platforms.known["courier"]
        assert known.is_set_up
        assert known.problem == ""
        settings = known.settings({})
        assert settings.allowed_users == ("anna", "ben")
        assert settings.allow_all_users is False
        assert Address.parse(f"courier:{settings.home_channel}") == Address("courier", "room:1")
        async with platforms.open("courier") as opened:
            assert opened.platform.account not in ("", "courier", service.token)


async def test_config_yaml_says_what_the_environment_does_not(
    harness: OpenHarness, install: Install, service: CourierService
) -> None:
    async with loaded(harness, install, "courier", COURIER_ALLOWED_USERS="anna") as platforms:
        known = platforms.known["courier"]
        assert not known.is_set_up
        settings = known.settings(
            {
                "serverUrl": service.url,
                "token": service.token,
                "allowed_users": [7],
                "home_channel": {"chat_id": "r1", "thread_id": "t"},
                "require_mention": False,
            }
        )
        assert (settings.allowed_users, settings.home_channel, settings.require_mention) == (("7",), "r1:t", False)
        assert service.token not in repr(settings)
        async with known.open(settings, platforms.kit) as platform:
            assert platform.name == "courier"


@pytest.mark.parametrize("raw", [{"enabled": "maybe"}, {"allowed_users": "anna"}, {"allowed_users": [None]}])
async def test_a_wrong_common_setting_is_told_by_its_name(
    harness: OpenHarness, install: Install, raw: dict[str, Any]
) -> None:
    async with loaded(harness, install, "parrot") as platforms:
        with pytest.raises(BadConfig, match=r"gateway\.platforms\.parrot.*" + next(iter(raw))):
            platforms.known["parrot"].settings(raw)


async def test_missing_settings_are_told_before_anything_is_made(harness: OpenHarness, install: Install) -> None:
    async with loaded(harness, install, "courier") as platforms:
        with pytest.raises(Refused, match="needs more settings: COURIER_URL, COURIER_TOKEN"):
            async with platforms.open("courier"):
                pass
