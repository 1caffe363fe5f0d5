"""What is known of a session's mail without a look: all of it, or nothing."""

from talaria.core.ids import InboxId, SessionId
from talaria.gateway.dispatcher import MAX_KNOWN, Arrivals
from talaria.gateway.envelope import Mail, Principal, Received
from talaria.platforms.base import Address, Arrival, Sender
from talaria.runtime.commands import PlainMessage
from talaria.store.chat_ports import Inbound
from talaria.testing.manual_clock import ManualClock

HERE = SessionId("here")


def mail(number: int) -> Mail:
    where = Address("telegram", "42")
    received = Received(Arrival(str(number), where, "dm", Sender("7"), "hi"), Principal("telegram", "7"), "key")
    row = Inbound("telegram", "bot", "42", str(number), HERE, "body", "key", InboxId(number))
    return Mail(row, received, PlainMessage("hi"))


def test_nothing_is_known_of_a_session_that_was_never_seen_empty() -> None:
    arrivals = Arrivals(ManualClock())
    arrivals.note(mail(1))
    assert not arrivals.take(HERE)


def test_all_that_came_for_an_empty_session_is_known_once() -> None:
    arrivals = Arrivals(ManualClock())
    arrivals.note_empty(HERE)
    arrivals.note(mail(1))
    arrivals.note(mail(2))
    assert list(arrivals.take(HERE)) == [mail(1), mail(2)]
    assert not arrivals.take(HERE)


def test_what_comes_after_a_look_must_be_looked_up_with_what_that_found() -> None:
    arrivals = Arrivals(ManualClock())
    arrivals.note_empty(HERE)
    arrivals.note(mail(1))
    arrivals.take(HERE)
    arrivals.note(mail(2))
    assert not arrivals.take(HERE)


def test_a_session_is_not_taken_for_empty_when_something_came_after_the_last_look() -> None:
    arrivals = Arrivals(ManualClock())
    arrivals.take(HERE)
    arrivals.note(mail(1))
    arrivals.note_empty(HERE)
    arrivals.note(mail(2))
    assert not arrivals.take(HERE)


def test_what_may_have_been_moved_or_dropped_is_not_known() -> None:
    arrivals = Arrivals(ManualClock())
    arrivals.note_empty(HERE)
    arrivals.note(mail(1))
    arrivals.forget(HERE)
    arrivals.note(mail(2))
    assert not arrivals.take(HERE)


def test_what_is_known_is_bounded_and_never_in_part() -> None:
    arrivals = Arrivals(ManualClock())
    arrivals.note_empty(HERE)
    arrivals.note(mail(1))
    for number in range(MAX_KNOWN):
        arrivals.note_empty(SessionId(str(number)))
    arrivals.note(mail(2))
    assert not arrivals.take(HERE)


def test_it_is_quiet_once_nothing_has_come_for_so_long() -> None:
    clock = ManualClock()
    arrivals = Arrivals(clock)
    assert arrivals.wait_s(HERE, 0.5) <= 0
    arrivals.note(mail(1))
    clock.advance(0.25)
    assert arrivals.wait_s(HERE, 0.5) == 0.25
    clock.advance(0.25)
    assert arrivals.wait_s(HERE, 0.5) <= 0
