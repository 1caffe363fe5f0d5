"""Platforms of plugins that are registered wrongly, and adapters that misbehave: it hurts nobody else, and is told."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.plugins.conftest import Install, OpenHarness, extensions, module, problems_of, statuses
from tests.waiting import until

from talaria.compat.hermes.platforms.plugin_platforms import PluginPlatform, plugin_platforms
from talaria.core.clock import Clock
from talaria.core.errors import TalariaError
from talaria.platforms.base import Address, Arrival, Batch, Kit, NotTaken, Outbound, Platform, Refused, Rejected, Unsure
from talaria.testing.harness import Harness
from talaria.testing.manual_clock import ManualClock

ADAPTER = """
import asyncio
from gateway.config import Platform
from gateway.platforms.base import BasePlatformAdapter, MessageEvent, SendResult

SEEN = []

class Adapter(BasePlatformAdapter):
    def __init__(self, config):
        super().__init__(config, Platform("odd"))
        SEEN.append(self)

    async def connect(self, *, is_reconnect=False):
        return True

    async def disconnect(self):
        SEEN.append("disconnected")

    async def send(self, chat_id, content, reply_to=None, metadata=None):
        return SendResult(success=True, message_id="m1")

    async def get_chat_info(self, chat_id):
        return {}

    async def tell(self, text="hello", **facts):
        source = self.build_source(chat_id="c1", user_id="anna")
        await self.handle_message(MessageEvent(text=text, source=source, **facts))

    def lose(self):
        self._mark_disconnected()

    async def give_up(self, why, retryable):
        self._set_fatal_error("gone", why, retryable=retryable)
        await self._notify_fatal_error()

def check():
    return True

def make(config):
    return Adapter(config)

def register(ctx):
    ctx.register_platform("odd", "Odd", lambda config: make(config), lambda: check(), install_hint="pip install odd")
"""
REAL_S = 2.0
MESSAGE = Outbound(Address("odd", "c1"), "hi", "key-1")


class Odd:
    """One application with the plugin `odd`."""

    def __init__(self, here: Harness, known: PluginPlatform, clock: Clock) -> None:
        self.here = here
        self.known = known
        self.kit = Kit(here.home, clock, lambda _: True)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Platform]:
        async with self.known.open(self.known.settings({}), self.kit) as platform:
            yield platform

    async def refusal(self) -> TalariaError:
        with pytest.raises(TalariaError) as caught:
            async with self.open():
                pass
        return caught.value

    @property
    def adapter(self) -> Any:
        return module("odd").SEEN[0]

    @property
    def problems(self) -> list[str]:
        return problems_of(self.here, "odd")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def odd(harness: OpenHarness, install: Install, clock: ManualClock, changed: str = "") -> AsyncGenerator[Odd]:
    """`changed` comes behind the plugin's code, and replaces parts of it."""
    install("odd", ADAPTER + changed)
    async with harness("odd", clock=clock) as one:
        asking = asyncio.ensure_future(plugin_platforms(extensions(one).brought.platforms, {}, clock))
        known = await _in_time(asking, clock)
        yield Odd(one, known["odd"], clock)


async def _in_time(work: "asyncio.Future[Any]", clock: ManualClock) -> Any:
    """What hangs is not waited for: its time passes, once it is clear that nothing else will happen."""
    await asyncio.wait([work], timeout=REAL_S)
    while not work.done():
        await asyncio.sleep(0.005)
        clock.advance(1)
    return await work


# Registering.

REGISTER = "ctx.register_platform({name!r}, label='X', adapter_factory=print, check_fn=print{more})"


def registering(name: str = "mine", more: str = "") -> str:
    return f"def register(ctx):\n    {REGISTER.format(name=name, more=more)}\n"


async def test_a_registered_platform_is_offered_by_its_name(harness: OpenHarness, install: Install) -> None:
    install("mine", registering(" MINE ", ", max_message_length=7, required_env=['A'], emoji='!', pii_safe=True"))
    async with harness("mine") as one:
        entry = extensions(one).brought.platforms["mine"].entry
        assert (entry.label, entry.max_message_length, entry.required_env) == ("X", 7, ["A"])
        assert (entry.plugin_name, entry.source, entry.emoji, entry.pii_safe) == ("mine", "plugin", "!", True)
        assert problems_of(one, "mine") == []


async def test_a_keyword_that_nobody_knows_is_a_type_error_of_the_plugin(
    harness: OpenHarness, install: Install
) -> None:
    install("mine", registering(more=", colour='red'"))
    async with harness("mine") as one:
        assert statuses(one)["mine"] == "failed"
        assert "TypeError" in problems_of(one, "mine")[0]
        assert "colour" in problems_of(one, "mine")[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (REGISTER.format(name="a:b", more=""), "'a:b' cannot be the name of a platform"),
        ("ctx.register_platform(7, 'X', print, print)", "'7' cannot be the name"),
        ("ctx.register_platform('x', 'X', None, print)", "platform x has no adapter_factory, or no check_fn"),
        ("ctx.register_platform('x', None, print, print)", "label of platform x is not text"),
        (REGISTER.format(name="x", more=", setup_fn=3"), "setup_fn of platform x is not callable"),
        (REGISTER.format(name="x", more=", max_message_length=-1"), "max_message_length of platform x"),
        (REGISTER.format(name="x", more=", allowed_users_env=['A']"), "allowed_users_env of platform x is not text"),
    ],
)
async def test_a_wrong_registration_is_told_and_the_rest_of_the_plugin_works(
    harness: OpenHarness, install: Install, call: str, words: str
) -> None:
    install("mine", f"def register(ctx):\n    {call}\n    ctx.register_command('fine', print)\n")
    async with harness("mine") as one:
        assert statuses(one)["mine"] == "loaded"
        assert extensions(one).brought.platforms == {}
        (problem,) = problems_of(one, "mine")
        assert words in problem


@pytest.mark.parametrize("name", ["telegram", "discord", "slack", "matrix", "webhook"])
async def test_our_own_names_are_taken_unless_the_person_says_otherwise(
    harness: OpenHarness, install: Install, name: str
) -> None:
    install("mine", registering(name))
    async with harness("mine") as one:
        assert extensions(one).brought.platforms == {}
        assert problems_of(one, "mine") == [f"its platform {name} is left out: Talaria has one of that name"]
    async with harness("mine", plugins={"entries": {"mine": {"allow_tool_override": True}}}) as one:
        assert list(extensions(one).brought.platforms) == [name]
        assert problems_of(one, "mine") == []


async def test_of_two_plugins_the_first_has_the_name_and_the_other_is_told(
    harness: OpenHarness, install: Install
) -> None:
    install("alpha", registering("chat"))
    install("beta", registering("chat"))
    async with harness("alpha", "beta") as one:
        assert extensions(one).brought.platforms["chat"].plugin.key == "alpha"
        assert problems_of(one, "beta") == ["its platform chat is left out: alpha has one of that name"]


async def test_a_plugin_may_use_the_registry_in_place_of_its_context(harness: OpenHarness, install: Install) -> None:
    source = """
from gateway.config import Platform
from gateway.platform_registry import PlatformEntry, platform_registry

SEEN = []

def register(ctx):
    platform_registry.register(PlatformEntry("mine", "Mine", lambda config: ("adapter", config), lambda: True))
    platform_registry.register(PlatformEntry("gone", "Gone", print, print))
    SEEN.append((platform_registry.unregister("gone"), platform_registry.unregister("gone")))
    platform_registry.register(PlatformEntry("shut", "Shut", print, lambda: False))
    platform_registry.register(PlatformEntry("bad", "Bad", lambda config: 1 / 0, lambda: True))
    platform_registry.register(PlatformEntry("odd", "Odd", print, lambda: True, validate_config=lambda config: False))
    SEEN.append(Platform("mine") is Platform("MINE"))
"""
    install("mine", source)
    async with harness("mine") as one:
        known = module("mine")
        assert known.SEEN == [(True, False), True]
        registry = known.platform_registry
        names = ["mine", "shut", "bad", "odd"]
        assert list(extensions(one).brought.platforms) == names
        assert [entry.name for entry in registry.all_entries()] == names
        assert [entry.name for entry in registry.plugin_entries()] == names
        assert registry.get("mine").label == "Mine"
        assert (registry.get("gone"), registry.is_registered("gone")) == (None, False)
        assert registry.create_adapter("mine", "config") == ("adapter", "config")
        assert [registry.create_adapter(name, "x") for name in ("gone", "shut", "bad", "odd")] == [None] * 4
        assert known.Platform("mine").value == "mine"
        with pytest.raises(RuntimeError, match="too late"):
            registry.register(registry.get("mine"))
    assert not registry.is_registered("mine")


# Being asked.


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("return False", "its plugin says that something is missing; pip install odd"),
        ("raise SystemExit(3)", "its check raised SystemExit: 3"),
        ("import threading; threading.Event().wait()", "its check did not return within 5 seconds"),
    ],
)
async def test_a_platform_that_cannot_be_used_says_why(
    harness: OpenHarness, install: Install, clock: ManualClock, check: str, words: str
) -> None:
    async with odd(harness, install, clock, f"\ndef check():\n    {check}\n") as one:
        assert one.known.problem == words
        assert one.known.label == "Odd"
        refusal = await one.refusal()
        assert isinstance(refusal, Refused)
        assert str(refusal) == f"Odd cannot be used: {words}."
        assert module("odd").SEEN == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ("raise ValueError('no url')", "making its adapter raised ValueError: no url"),
        ("return None", "something that is not an adapter"),
        ("return object()", "something that is not an adapter"),
        ("import threading; threading.Event().wait()", "making its adapter did not return within 30 seconds"),
    ],
)
async def test_an_adapter_that_cannot_be_made_is_refused(
    harness: OpenHarness, install: Install, clock: ManualClock, make: str, words: str
) -> None:
    async with odd(harness, install, clock, f"\ndef make(config):\n    {make}\n") as one:
        refusal = await _in_time(asyncio.ensure_future(one.refusal()), clock)
        assert isinstance(refusal, Refused)
        assert words in str(refusal)


async def test_an_adapter_that_wants_to_see_the_event_loop_while_it_is_made_sees_it(
    harness: OpenHarness, install: Install, clock: ManualClock
) -> None:
    make = "\ndef make(config):\n    asyncio.get_running_loop()\n    return Adapter(config)\n"
    async with odd(harness, install, clock, make) as one, one.open() as platform:
        assert await platform.send(MESSAGE) == "m1"


# Connecting.


@pytest.mark.parametrize(
    ("connect", "failure", "words"),
    [
        ("raise OSError('no route')", NotTaken, "its adapter raised OSError: no route"),
        ("raise SystemExit(1)", NotTaken, "its adapter raised SystemExit: 1"),
        ("raise asyncio.CancelledError", NotTaken, "its adapter was cancelled by its own code"),
        ("return False", NotTaken, "does not say why"),
        ("return None", NotTaken, "does not say why"),
        ("await asyncio.Event().wait()", NotTaken, "did not return within 60 seconds"),
        ("self._set_fatal_error('x', 'bad key', retryable=False)", Refused, "Odd is not usable: bad key."),
        ("self._set_fatal_error('x', 'busy', retryable=True)", NotTaken, "Odd is not usable: busy."),
    ],
)
async def test_an_adapter_that_does_not_connect_is_let_go_and_told(
    harness: OpenHarness,
    install: Install,
    clock: ManualClock,
    connect: str,
    failure: type[TalariaError],
    words: str,
) -> None:
    changed = f"\nasync def connect(self, *, is_reconnect=False):\n    {connect}\nAdapter.connect = connect\n"
    async with odd(harness, install, clock, changed) as one:
        fault = await _in_time(asyncio.ensure_future(one.refusal()), clock)
        assert type(fault) is failure
        assert words in str(fault)
        assert module("odd").SEEN[1:] == ["disconnected"]


async def test_it_is_connected_as_after_an_outage(harness: OpenHarness, install: Install, clock: ManualClock) -> None:
    changed = """
async def connect(self, *, is_reconnect=False):
    SEEN.append(is_reconnect)
    return True
Adapter.connect = connect
"""
    async with odd(harness, install, clock, changed) as one, one.open():
        assert module("odd").SEEN[1] is True


@pytest.mark.parametrize("ending", ["raise ValueError('no')", "await asyncio.Event().wait()"])
async def test_an_adapter_that_does_not_disconnect_is_left_alone(
    harness: OpenHarness, install: Install, clock: ManualClock, ending: str
) -> None:
    changed = f"\nasync def disconnect(self):\n    {ending}\nAdapter.disconnect = disconnect\n"

    async def opened_and_closed(one: Odd) -> None:
        async with one.open():
            pass

    async with odd(harness, install, clock, changed) as one:
        await _in_time(asyncio.ensure_future(opened_and_closed(one)), clock)
        assert any("disconnect of its platform odd" in problem for problem in one.problems)


# Receiving.


async def drained(platform: Platform, count: int) -> list[str]:
    texts: list[str] = []
    async for batch in platform.receive(None):
        texts.extend(one.text for one in batch.items if isinstance(one, Arrival))
        await platform.acknowledge(batch)
        if len(texts) >= count:
            return texts
    raise AssertionError("the stream ended")


async def test_a_flood_arrives_whole_and_in_order(harness: OpenHarness, install: Install, clock: ManualClock) -> None:
    async with odd(harness, install, clock) as one, one.open() as platform:
        telling = [asyncio.ensure_future(one.adapter.tell(f"{number}")) for number in range(10_000)]
        assert await drained(platform, 10_000) == [f"{number}" for number in range(10_000)]
        await asyncio.gather(*telling)


async def test_who_tells_one_after_the_other_is_held_back_until_each_is_taken(
    harness: OpenHarness, install: Install, clock: ManualClock
) -> None:
    async def tell_three(adapter: Any) -> None:
        for text in "abc":
            await adapter.tell(text)

    async with odd(harness, install, clock) as one, one.open() as platform:
        telling = asyncio.ensure_future(tell_three(one.adapter))
        batches = platform.receive(None)
        first = await anext(batches)
        assert len(first.items) == 1
        await platform.acknowledge(first)
        assert await drained(platform, 2) == ["b", "c"]
        await telling


async def test_what_is_told_while_it_connects_is_received_later(
    harness: OpenHarness, install: Install, clock: ManualClock
) -> None:
    changed = """
async def connect(self, *, is_reconnect=False):
    await self.tell("missed")
    return True
Adapter.connect = connect
"""
    async with odd(harness, install, clock, changed) as one, one.open() as platform:
        assert await drained(platform, 1) == ["missed"]


async def test_what_comes_too_late_is_not_taken_and_the_adapter_knows(
    harness: OpenHarness, install: Install, clock: ManualClock
) -> None:
    async with odd(harness, install, clock) as one:
        async with one.open() as platform:
            waiting = asyncio.ensure_future(one.adapter.tell("waiting"))
            batches = platform.receive(None)
            await anext(batches)
            await batches.aclose()
        with pytest.raises(RuntimeError, match="closed before this was written"):
            await waiting
        with pytest.raises(RuntimeError, match="odd is closed"):
            await one.adapter.tell("late")


@pytest.mark.parametrize("facts", [{"source": None}, {"message_id": 7, "media_urls": None, "timestamp": "x"}])
async def test_an_event_of_wrong_types_is_read_or_left_out(
    harness: OpenHarness, install: Install, clock: ManualClock, facts: dict[str, Any]
) -> None:
    async with odd(harness, install, clock) as one, one.open() as platform:
        event = module("odd").MessageEvent(**{"text": "odd", "source": one.adapter.build_source("c1"), **facts})
        telling = [
            asyncio.ensure_future(work) for work in (one.adapter.handle_message(event), one.adapter.tell("good"))
        ]
        count = 1 if facts.get("source", event) is None else 2
        assert (await drained(platform, count))[-1] == "good"
        await asyncio.wait(telling)


async def test_silence_is_a_pulse_only_while_the_adapter_says_that_it_is_connected(
    harness: OpenHarness, install: Install, clock: ManualClock
) -> None:
    changed = """
async def connect(self, *, is_reconnect=False):
    self._mark_connected()
    return True
Adapter.connect = connect
"""
    async with odd(harness, install, clock, changed) as one, one.open() as platform:
        batches = platform.receive(None)
        assert await _in_time(asyncio.ensure_future(anext(batches)), clock) == Batch()
        one.adapter.lose()
        silent = asyncio.ensure_future(anext(batches))
        for _ in range(5):
            await asyncio.sleep(0.001)
            clock.advance(platform.capabilities.pulse_s)
        assert not silent.done()
        await asyncio.gather(one.adapter.tell("back"), _acknowledged(platform, silent))


async def _acknowledged(platform: Platform, batch: "asyncio.Future[Batch]") -> None:
    await platform.acknowledge(await batch)


async def test_a_fatal_error_ends_the_stream_after_what_came_before(
    harness: OpenHarness, install: Install, clock: ManualClock
) -> None:
    async with odd(harness, install, clock) as one, one.open() as platform:
        telling = asyncio.ensure_future(one.adapter.tell("last"))
        batches = platform.receive(None)
        batch = await anext(batches)
        await one.adapter.give_up("we were thrown out", retryable=False)
        assert len(batch.items) == 1
        await platform.acknowledge(batch)
        await telling
        with pytest.raises(Refused, match="Odd is not usable: we were thrown out"):
            await anext(batches)


async def test_a_fatal_error_wakes_who_waits(harness: OpenHarness, install: Install, clock: ManualClock) -> None:
    async with odd(harness, install, clock) as one, one.open() as platform:
        waiting = asyncio.ensure_future(anext(platform.receive(None)))
        await asyncio.sleep(0.001)
        await one.adapter.give_up("cut", retryable=True)
        with pytest.raises(NotTaken, match="cut"):
            await waiting


# Sending.


@pytest.mark.parametrize(
    ("send", "failure", "words"),
    [
        ("raise ValueError('no')", Unsure, "send of Odd raised ValueError: no"),
        ("raise SystemExit(1)", Unsure, "send of Odd raised SystemExit: 1"),
        ("raise KeyboardInterrupt", Unsure, "send of Odd raised KeyboardInterrupt"),
        ("raise asyncio.CancelledError", Unsure, "send of Odd was cancelled by its own code"),
        ("return None", Unsure, "does not say whether it was sent"),
        ("return {'success': True}", Unsure, "does not say whether it was sent"),
        ("await asyncio.Event().wait()", Unsure, "send of Odd did not return within 60 seconds"),
        ("return SendResult(False)", Rejected, "Odd refused it."),
    ],
)
async def test_an_adapter_that_fails_to_send_ends_as_promised(
    harness: OpenHarness,
    install: Install,
    clock: ManualClock,
    send: str,
    failure: type[TalariaError],
    words: str,
) -> None:
    changed = f"\nasync def send(self, *args, **facts):\n    {send}\nAdapter.send = send\n"
    async with odd(harness, install, clock, changed) as one, one.open() as platform:
        with pytest.raises(failure) as caught:
            await _in_time(asyncio.ensure_future(platform.send(MESSAGE)), clock)
        assert words in str(caught.value)
        is_fault = words.startswith("send of Odd")
        assert any("send of its platform odd" in problem for problem in one.problems) is is_fault


async def test_whoever_stops_a_send_leaves_at_once_and_the_adapter_stops_too(
    harness: OpenHarness, install: Install, clock: ManualClock
) -> None:
    changed = """
async def send(self, *args, **facts):
    SEEN.append("sending")
    try:
        await asyncio.Event().wait()
    finally:
        SEEN.append("stopped")
Adapter.send = send
"""
    async with odd(harness, install, clock, changed) as one, one.open() as platform:
        sending = asyncio.ensure_future(platform.send(MESSAGE))
        await until(lambda: module("odd").SEEN[-1] == "sending")
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await until(lambda: module("odd").SEEN[-1] == "stopped")
        assert one.problems == []


async def test_one_whose_edits_must_be_finished_is_not_edited(
    harness: OpenHarness, install: Install, clock: ManualClock
) -> None:
    changed = "\nAdapter.edit_message = Adapter.send\nAdapter.REQUIRES_EDIT_FINALIZE = True\n"
    async with odd(harness, install, clock, changed) as one, one.open() as platform:
        assert not platform.capabilities.can_edit


async def test_hooks_that_fail_disturb_nobody(harness: OpenHarness, install: Install, clock: ManualClock) -> None:
    changed = """
async def complain(self, *facts):
    raise SystemExit("no")
Adapter.on_processing_start = Adapter.on_processing_complete = complain
"""
    async with odd(harness, install, clock, changed) as one, one.open() as platform:
        telling = asyncio.ensure_future(one.adapter.tell(message_id="p1"))
        assert await drained(platform, 1) == ["hello"]
        await telling
        assert await platform.send(Outbound(MESSAGE.where, "hi", "k", reply_to="p1")) == "m1"
        await until(lambda: len(one.problems) == 2)
        assert all("raised SystemExit: no" in problem for problem in one.problems)


async def test_two_applications_after_each_other_do_not_disturb_each_other(
    harness: OpenHarness, install: Install, clock: ManualClock, tmp_path: Path
) -> None:
    async with odd(harness, install, clock) as one, one.open() as platform:
        assert await platform.send(MESSAGE) == "m1"
    async with harness("odd", clock=clock) as again:
        known = await plugin_platforms(extensions(again).brought.platforms, {}, clock)
        kit = Kit(tmp_path, clock, lambda _: True)
        async with known["odd"].open(known["odd"].settings({}), kit) as platform:
            assert await platform.send(MESSAGE) == "m1"


async def test_one_that_skips_the_beginning_of_its_base_is_refused(
    harness: OpenHarness, install: Install, clock: ManualClock
) -> None:
    changed = "\nAdapter.__init__ = lambda self, config: SEEN.append(self)\n"
    async with odd(harness, install, clock, changed) as one:
        refusal = await one.refusal()
        assert isinstance(refusal, Refused)
        assert "Odd is not usable: its adapter raised AttributeError" in str(refusal)


async def test_no_failure_tells_a_secret_of_the_settings(
    harness: OpenHarness, install: Install, clock: ManualClock
) -> None:
    changed = """
async def send(self, *args, **facts):
    raise OSError(f"cannot reach http://host/{self.config.token}/send?p={self.config.extra['bot_password']}")
Adapter.send = send
"""
    async with odd(harness, install, clock, changed) as one:
        settings = one.known.settings({"token": "plain-words", "bot_password": "hunter2"})
        async with one.known.open(settings, one.kit) as platform:
            with pytest.raises(Unsure) as caught:
                await platform.send(MESSAGE)
    assert "http://host/•••/send?p=•••" in str(caught.value)
