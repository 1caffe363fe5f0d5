"""What a push would do is read from its first bytes, however they come in, or it is not passed on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.tools.broker.commits import MAX_REFS, OddPush, PushHead, RefUpdate

OLD, NEW, NONE = "1" * 40, "2" * 40, "0" * 40


def packet(line: str) -> bytes:
    content = line.encode("utf-8", "surrogateescape")
    return b"%04x" % (len(content) + 4) + content


def push(*lines: str) -> bytes:
    return b"".join(map(packet, lines)) + b"0000"


USUAL = push(f"{OLD} {NEW} refs/heads/main\0 report-status agent=git/2", f"{NONE} {NEW} refs/tags/v1\n") + b"PACK..."


@given(st.lists(st.integers(1, 40)))
def test_refs_are_found_however_the_bytes_come_in(sizes: list[int]) -> None:
    head = PushHead()
    rest = USUAL
    for size in (*sizes, len(USUAL)):
        head.feed(rest[:size])
        rest = rest[size:]
    assert head.updates == [RefUpdate(OLD, NEW, "refs/heads/main"), RefUpdate(NONE, NEW, "refs/tags/v1")]
    assert head.is_complete
    assert bytes(head.received) == USUAL
    assert [(one.name, one.is_new, one.is_deletion) for one in head.updates] == [
        ("main", False, False),
        ("tag v1", True, False),
    ]


def test_nothing_to_push_names_no_ref() -> None:
    head = PushHead()
    head.feed(b"0000")
    assert head.is_complete
    assert not head.updates


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1",
        b"0001",
        b"0004",
        b"zzzz",
        b"-001",
        b" 0f ",
        push("push-cert\0 x"),
        push(f"{OLD} {NEW} main"),
        push(f"{OLD} {NEW} refs/heads/a b"),
        push(f"{OLD} {NEW} refs/heads/a\u202eb"),
        push(f"{OLD} {NEW} refs/heads/a\x1b[2J"),
        push(f"{OLD} {NEW}  refs/heads/main"),
        push(f"{OLD[1:]} {NEW} refs/heads/main"),
        push(f"{OLD.upper()} {'A' * 40} refs/heads/main"),
        push(f"{OLD} {NEW} refs/heads/main", "shallow " + OLD),
        push(f"{OLD} {NEW} refs/heads/main\0 x\nrefs/heads/other", f"x {OLD} {NEW} refs/heads/other"),
        push(*(f"{NONE} {NEW} refs/heads/{number}" for number in range(MAX_REFS + 1))),
        push(f"{OLD} {NEW} refs/heads/main\0 report-status push-options"),
        push(f"{OLD} {NEW} refs/heads/main\0 report-status", f"{OLD} {NEW} refs/heads/x\0 push-options"),
        push(f"{OLD} {NEW} refs/heads/main\0 push-cert=1"),
        push(f"{OLD} {NEW} refs/heads/\udcff"),
        push(f"{OLD} {NEW} refs/heads/main\n\0 quiet"),
        b"0000" + push(f"{OLD} {NEW} refs/heads/main"),
        push(f"shallow {OLD}") + b"P",
    ],
)
def test_what_is_not_plainly_a_push_is_refused(sent: bytes) -> None:
    with pytest.raises(OddPush):
        PushHead().feed(sent)


def test_a_push_that_names_no_end_is_refused() -> None:
    with pytest.raises(OddPush):
        PushHead().feed(packet("shallow " + OLD) * 100_000)


@pytest.mark.parametrize("sent", [b"", b"00", packet(f"{OLD} {NEW} refs/heads/main\0 quiet"), USUAL[:60]])
def test_a_push_that_ends_before_all_refs_are_named_is_refused(sent: bytes) -> None:
    head = PushHead()
    head.feed(sent)
    with pytest.raises(OddPush):
        head.end()


def test_what_git_agrees_on_with_servers_passes() -> None:
    head = PushHead()
    agreed = "report-status-v2 side-band-64k atomic quiet object-format=sha1 agent=git/2.39 session-id=x delete-refs"
    head.feed(push(f"{OLD} {NEW} refs/heads/main\0 {agreed}"))
    head.end()
    assert head.is_decided
