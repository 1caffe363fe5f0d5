"""Ports that pass everything on: override one method to watch it, to disturb it, or to die in it."""

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from talaria.store.base import Handoffs, Journal, Sessions, Store
from talaria.store.chat_ports import Chats, Inbox, Outbox

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Proxy(Generic[T]):
    def __init__(self, port: T) -> None:
        self.port = port


def _passed_on(call: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    def pass_on(self: _Proxy[object], *given: P.args, **named: P.kwargs) -> R:
        return getattr(self.port, call.__name__)(*given, **named)

    return pass_on


class JournalProxy(_Proxy[Journal]):
    seize = _passed_on(Journal.seize)
    record = _passed_on(Journal.record)
    release = _passed_on(Journal.release)
    entries = _passed_on(Journal.entries)
    latest = _passed_on(Journal.latest)
    calls = _passed_on(Journal.calls)
    holder = _passed_on(Journal.holder)
    list_interrupted = _passed_on(Journal.list_interrupted)


class SessionsProxy(_Proxy[Sessions]):
    create = _passed_on(Sessions.create)
    get = _passed_on(Sessions.get)
    find = _passed_on(Sessions.find)
    list = _passed_on(Sessions.list)
    latest = _passed_on(Sessions.latest)
    rename = _passed_on(Sessions.rename)
    delete = _passed_on(Sessions.delete)
    fork = _passed_on(Sessions.fork)
    adopt = _passed_on(Sessions.adopt)


class InboxProxy(_Proxy[Inbox]):
    accept = _passed_on(Inbox.accept)
    cursor = _passed_on(Inbox.cursor)
    list_pending = _passed_on(Inbox.list_pending)
    list_sessions = _passed_on(Inbox.list_sessions)
    find = _passed_on(Inbox.find)
    list_from = _passed_on(Inbox.list_from)
    take = _passed_on(Inbox.take)
    finish = _passed_on(Inbox.finish)
    prune = _passed_on(Inbox.prune)


class OutboxProxy(_Proxy[Outbox]):
    list_targets = _passed_on(Outbox.list_targets)
    list_due = _passed_on(Outbox.list_due)
    add = _passed_on(Outbox.add)
    begin = _passed_on(Outbox.begin)
    start = _passed_on(Outbox.start)
    start_due = _passed_on(Outbox.start_due)
    mark_sent = _passed_on(Outbox.mark_sent)
    defer = _passed_on(Outbox.defer)
    fail = _passed_on(Outbox.fail)
    expire = _passed_on(Outbox.expire)
    count = _passed_on(Outbox.count)
    retry = _passed_on(Outbox.retry)
    move = _passed_on(Outbox.move)
    rows = _passed_on(Outbox.rows)
    find = _passed_on(Outbox.find)
    list = _passed_on(Outbox.list)
    prune = _passed_on(Outbox.prune)


class StoreProxy:
    """A store with its journal, and perhaps other parts, exchanged."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        sessions: Sessions | None = None,
        *,
        inbox: Inbox | None = None,
        outbox: Outbox | None = None,
        chats: Chats | None = None,
        handoffs: Handoffs | None = None,
    ) -> None:
        self._store = store
        self.version = store.version
        self.journal = journal
        self.inbox = inbox or store.inbox
        self.chats = chats or store.chats
        self.access = store.access
        self.sessions = sessions or store.sessions
        self.owners = store.owners
        self.outbox = outbox or store.outbox
        self.handoffs = handoffs or store.handoffs
        self.search = store.search
        self.spending = store.spending
        self.approvals = store.approvals
        self.grants = store.grants
        self.signals = store.signals
        self.api_tokens = store.api_tokens
        self.histories = store.histories

    @property
    def trouble(self) -> str:
        return self._store.trouble
