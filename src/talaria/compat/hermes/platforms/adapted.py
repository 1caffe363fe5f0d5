"""A third-party adapter as a `Platform`.

It pushes, we pull: what it hands over waits here until the gateway has written it to disk, and only then does its
`handle_message` return. So an adapter that tells its service "received" afterwards loses nothing; with one that does so
before, whatever waits here is lost with the process.

It is other people's async code on our own event loop, where its connections live: with a time limit, and contained.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, cast

from talaria.compat.hermes.platforms.adapter import BasePlatformAdapter, ProcessingOutcome, has_own
from talaria.compat.hermes.platforms.incoming_events import to_arrival
from talaria.compat.hermes.platforms.send_outcomes import read_sent_id, to_safe_line
from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.fs import read_bytes
from talaria.core.plugin_calls import (
    PluginError,
    contain,
    ignore_failure,
    plugin_error,
    select_keywords,
    wait_for_end,
    wait_for_event,
)
from talaria.core.text import as_text
from talaria.platforms.base import (
    Address,
    Arrival,
    Attachment,
    Batch,
    Capabilities,
    ChatInfo,
    ChatKind,
    NotTaken,
    Outbound,
    Press,
    Refused,
    Rejected,
    SentId,
    Unsure,
)
from talaria.plugins.registered import PlatformEntry

HOOK_S = 10.0
MAX_UNANSWERED = 1_000
MAX_WAITING = 1_000
CALL_S = 60.0
CLOSE_S = 10.0
PULSE_S = 60.0
USUAL_MAX_CHARS = 4_000
BATCH = 100
_DIRECT = frozenset({"dm", "private", "direct"})

Tell = Callable[[str, PluginError], None]
"""What of the plugin failed, and how."""
log = logging.getLogger(__name__)


async def call_within(work: Callable[[], Awaitable[Any]], seconds: float, clock: Clock) -> Any:
    """Raises `PluginError`, and nothing else. What has not returned in time is cancelled, and left alone."""

    async def contain_work() -> Any:
        try:
            return await work()
        except (asyncio.CancelledError, GeneratorExit, PluginError):
            raise
        except BaseException as fault:  # also SystemExit: a plugin must not stop the loop
            raise plugin_error(fault) from fault

    running = asyncio.ensure_future(contain_work())
    try:
        is_in_time = await wait_for_end(running, seconds, clock)
    finally:
        if not running.done():
            running.cancel()
            running.add_done_callback(ignore_failure)
    if not is_in_time:
        raise PluginError(f"did not return within {seconds:.0f} seconds", has_hung=True)
    if running.cancelled():
        raise PluginError("was cancelled by its own code")
    return running.result()


class Processing:
    """Reports to an adapter that its messages were accepted and answered, one report after the other: adapters show a
    reaction, or hold the next message back until then. An answer in several messages counts from the first of them."""

    def __init__(self, adapter: BasePlatformAdapter, clock: Clock, tell: Tell) -> None:
        self._adapter = adapter
        self._clock = clock
        self._tell = tell
        self._unanswered: dict[tuple[str, str], Any] = {}
        self._calls: asyncio.Queue[tuple[str, tuple[Any, ...]]] = asyncio.Queue(MAX_WAITING)

    def note_start(self, event: object, where: Address, message_id: str) -> None:
        self._note("on_processing_start", event)
        if has_own(self._adapter, "on_processing_complete"):
            self._unanswered[where.chat, message_id] = event
        while len(self._unanswered) > MAX_UNANSWERED:
            del self._unanswered[next(iter(self._unanswered))]

    def note_completion(self, where: Address, message_id: str) -> None:
        event = self._unanswered.pop((where.chat, message_id), None)
        if event is not None:
            self._note("on_processing_complete", event, ProcessingOutcome.SUCCESS)

    def _note(self, hook: str, *facts: Any) -> None:
        if has_own(self._adapter, hook):
            with suppress(asyncio.QueueFull):  # an adapter that slow misses some reports
                self._calls.put_nowait((hook, facts))

    async def run(self) -> None:
        while True:
            hook, facts = await self._calls.get()
            method = getattr(self._adapter, hook)
            try:
                await call_within(lambda method=method, facts=facts: method(*facts), HOOK_S, self._clock)
            except PluginError as fault:
                self._tell(hook, fault)


@dataclass(frozen=True, slots=True)
class Handed:
    event: object
    arrival: Arrival
    is_taken: "asyncio.Future[bool]"


class AdaptedPlatform:
    def __init__(
        self,
        entry: PlatformEntry,
        adapter: BasePlatformAdapter,
        account: str,
        clock: Clock,
        tell: Tell,
        secrets: Sequence[str] = (),
    ) -> None:
        """`secrets` are hidden from error messages."""
        self.name = entry.name
        self.account = account
        self._entry = entry
        self._adapter = adapter
        self._clock = clock
        self._tell = tell
        self._secrets = secrets
        self._waiting: deque[Handed] = deque()
        self._given: dict[str, list[Handed]] = {}
        """Not acknowledged yet, by the token of their batch."""
        self._tokens = count(1)
        self._has_news = asyncio.Event()
        self._processing = Processing(adapter, clock, tell)
        self._reporting: asyncio.Future[None] | None = None
        self._state: Literal["connecting", "open", "closed"] = "connecting"
        self._reports_its_state = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_chars=self._entry.max_message_length or USUAL_MAX_CHARS,
            can_edit=self._can("edit_message") and not self._adapter.REQUIRES_EDIT_FINALIZE,
            can_delete=self._can("delete_message"),
            can_type=self._can("send_typing"),
            has_threads=self._can("create_handoff_thread"),
            pulse_s=PULSE_S,
        )

    def _can(self, method: str) -> bool:
        return has_own(self._adapter, method)

    # Opening and closing.

    async def connect(self) -> None:
        """As after an outage: the adapter fetches what waits at the service. Raises `NotTaken`, `Refused`."""
        adapter = self._adapter

        async def begin() -> object:
            adapter.set_message_handler(self._take)
            adapter.set_fatal_error_handler(lambda _: self._has_news.set())
            return await adapter.connect(**select_keywords(adapter.connect, {"is_reconnect": True}))

        try:
            is_connected = await call_within(begin, CALL_S, self._clock)
        except PluginError as fault:
            said = self._report_fault("connect", fault)
            raise NotTaken(f"{self._entry.label} cannot be reached: its adapter {said}.") from fault
        self._check_connection()
        if not is_connected:
            raise NotTaken(f"{self._entry.label} cannot be reached: its adapter does not say why.")
        self._reports_its_state = self._says_connected()
        self._reporting = asyncio.ensure_future(self._processing.run())
        self._state = "open"

    def _to_safe_line(self, words: object) -> str:
        return to_safe_line(as_text(words), self._secrets)

    def _report_fault(self, method: str, fault: PluginError) -> str:
        said = self._to_safe_line(fault)
        self._tell(method, PluginError(said))
        return said

    async def close(self) -> None:
        self._state = "closed"
        for handed in (*self._waiting, *(one for given in self._given.values() for one in given)):
            _settle(handed, is_taken=False)
        if self._reporting is not None:
            self._reporting.cancel()
        try:
            await call_within(self._adapter.disconnect, CLOSE_S, self._clock)
        except PluginError as fault:
            self._report_fault("disconnect", fault)

    # What comes in.

    async def _take(self, event: object) -> None:
        if self._state == "closed":
            raise RuntimeError(f"{self.name} is closed; hand this over again when it is connected.")
        came = to_arrival(event, self.name, self._clock.now())
        if came is None:
            log.info("%s handed over a message from a bot, or without a chat", self.name)
            return
        handed = Handed(event, came, asyncio.get_running_loop().create_future())
        self._waiting.append(handed)
        self._has_news.set()
        if self._state == "open" and not await handed.is_taken:  # while it connects, nothing is read yet
            raise RuntimeError(f"{self.name} was closed before this was written to disk; hand it over again.")

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:  # noqa: ARG002  (adapters have none)
        self._waiting.extendleft(reversed([one for given in self._given.values() for one in given]))
        self._given.clear()
        while True:
            if self._waiting:
                given = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
                token = str(next(self._tokens))
                self._given[token] = given
                yield Batch(tuple(one.arrival for one in given), token=token)
                continue
            self._check_connection()
            self._has_news.clear()
            has_news = await wait_for_event(self._has_news, PULSE_S, self._clock)
            if not has_news and (self._says_connected() or not self._reports_its_state):
                yield Batch()

    def _check_connection(self) -> None:
        """Raises `NotTaken`, `Refused` if the adapter has given up."""
        adapter = self._adapter
        try:
            why = contain(lambda: self._to_safe_line(adapter.fatal_error_message) if adapter.has_fatal_error else None)
            is_temporary = contain(lambda: bool(adapter.fatal_error_retryable))
        except PluginError as fault:
            why, is_temporary = f"its adapter {self._to_safe_line(fault)}", False
        if why is not None:
            sentence = f"{self._entry.label} is not usable: {why}."
            raise NotTaken(sentence) if is_temporary else Refused(sentence)

    def _says_connected(self) -> bool:
        try:
            return contain(lambda: bool(self._adapter.is_connected))
        except PluginError:
            return False

    async def acknowledge(self, batch: Batch) -> None:
        for handed in self._given.pop(batch.token, ()):
            _settle(handed, is_taken=True)
            self._processing.note_start(handed.event, handed.arrival.where, handed.arrival.message_id)

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        """The adapter has already fetched it: its file is copied."""
        source = Path(attachment.ref)

        def copy() -> None:
            content = read_bytes(source, max_bytes + 1)
            if len(content) > max_bytes:
                raise Rejected(f"{source.name} is larger than {max_bytes} bytes.")
            to.write_bytes(content)

        try:
            await in_thread(copy)
        except OSError as fault:
            raise Rejected(f"{attachment.name or 'The file'} is gone: {fault.strerror}.") from fault

    # What goes out.

    async def send(self, message: Outbound) -> SentId:
        facts = _facts(message.where, reply_to=message.reply_to or None)
        if message.file is None:
            method, content = "send", message.text
        else:
            kind, file = message.file.mime.partition("/")[0], message.file
            special = {"image": "send_image_file", "video": "send_video"}.get(kind, "")
            method = next((name for name in (special, "send_document") if name and self._can(name)), "")
            if not method:
                raise Rejected(f"{self._entry.label} cannot send files like {file.name}.")
            content = str(file.path)
            facts |= {"caption": message.text or None, "file_name": file.name}
        send = getattr(self._adapter, method)
        result = await self._call(method, lambda: send(message.where.chat, content, **select_keywords(send, facts)))
        sent = self._read_sent_id(result, message.key)
        self._processing.note_completion(message.where, message.reply_to)
        return sent

    def _read_sent_id(self, result: object, key: str) -> SentId:
        return read_sent_id(result, key, self._entry.label, self._secrets)

    async def edit(self, sent: SentId, message: Outbound) -> None:
        edit = self._adapter.edit_message
        facts = select_keywords(edit, _facts(message.where))
        result = await self._call("edit_message", lambda: edit(message.where.chat, sent, message.text, **facts))
        self._read_sent_id(result, message.key)

    async def delete(self, sent: SentId, where: Address) -> None:
        if not await self._call("delete_message", lambda: self._adapter.delete_message(where.chat, sent)):
            raise Rejected(f"{self._entry.label} did not delete the message.")

    async def show_typing(self, where: Address) -> None:
        typing = self._adapter.send_typing
        await self._call("send_typing", lambda: typing(where.chat, **select_keywords(typing, _facts(where))))

    async def chat_info(self, where: Address) -> ChatInfo:
        info: object = await self._call("get_chat_info", lambda: self._adapter.get_chat_info(where.chat))
        fields = cast("dict[str, object]", info) if isinstance(info, dict) else {}
        kind: ChatKind = "dm" if as_text(fields.get("type") or "") in _DIRECT else "group"
        return ChatInfo(where, kind, as_text(fields.get("user_id") or where.chat) if kind == "dm" else "")

    async def create_thread(self, where: Address, name: str) -> Address | None:
        thread = await self._call(
            "create_handoff_thread", lambda: self._adapter.create_handoff_thread(where.chat, name)
        )
        return Address(where.platform, where.chat, as_text(thread)) if thread else None

    async def react(self, where: Address, message_id: str, emoji: str) -> None:
        """Adapters cannot do this."""

    async def answer(self, press: Press, text: str) -> None:
        """There are no buttons."""

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """Adapters cannot do this."""

    async def _call(self, method: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Raises `Unsure`: an adapter that raises, or does not return, may have done it."""
        try:
            return await call_within(work, CALL_S, self._clock)
        except PluginError as fault:
            raise Unsure(f"{method} of {self._entry.label} {self._report_fault(method, fault)}.") from fault


def _facts(where: Address, **more: Any) -> dict[str, Any]:
    return {**more, "metadata": {"thread_id": where.thread} if where.thread else None}


def _settle(handed: Handed, *, is_taken: bool) -> None:
    if not handed.is_taken.done():
        handed.is_taken.set_result(is_taken)
