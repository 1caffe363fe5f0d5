"""Known secrets in texts, in data, in what comes in pieces, and in the messages of a conversation."""

import base64
import json
import textwrap
from collections.abc import Callable, Iterable
from urllib.parse import quote, quote_plus

import pytest

from talaria.core.entries import MessageAdded, Noted
from talaria.core.events import RoundEnded, TurnBegan
from talaria.core.ids import CallId, SessionId, TurnId
from talaria.core.messages import Assistant, Context, Image, Text, Thinking, ToolCall, ToolResult, Usage, User
from talaria.core.redaction import Redactor
from talaria.core.secret_finder import HIDDEN
from talaria.store.base import CallEnded, CallIntended, CallStarted

KEY = "sk-live-4fT9+x/Qz7WmB2kLpR8s"
AWKWARD = '???~~~ "wörd"/1\\2'
LONG = "sk-proj-" + "".join(f"{number:04}xYz" for number in range(22))
redactor = Redactor([KEY, AWKWARD, LONG])


DISGUISES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "reversed": lambda secret: secret[::-1],
    "hex": lambda secret: secret.encode().hex(),
    "HEX": lambda secret: secret.encode().hex().upper(),
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64 without padding": lambda secret: base64.b64encode(secret.encode()).decode().rstrip("="),
    "base64 for addresses": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode(),
    "base64 for addresses, without padding": lambda secret: (
        base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")
    ),
    "quoted as a path": quote,
    "quoted strictly": lambda secret: quote(secret, safe=""),
    "quoted as a form": quote_plus,
    "quoted by a browser": lambda secret: quote(secret, safe="!~*'()"),
    "every byte quoted": lambda secret: "".join(f"%{byte:02x}" for byte in secret.encode()),
    "EVERY BYTE QUOTED": lambda secret: "".join(f"%{byte:02X}" for byte in secret.encode()),
    "json": lambda secret: json.dumps(secret)[1:-1],
    "json in unicode": lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
    "json with slashes escaped": lambda secret: json.dumps(secret)[1:-1].replace("/", "\\/"),
    "every sign escaped": lambda secret: "".join(f"\\u{ord(sign):04x}" for sign in secret),
    "EVERY SIGN ESCAPED": lambda secret: "".join(f"\\u{ord(sign):04X}" for sign in secret),
}


@pytest.mark.parametrize("secret", [KEY, AWKWARD, LONG], ids=["key", "awkward", "long"])
@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_secret_is_hidden_in_every_usual_disguise(secret: str, disguise: str) -> None:
    written = DISGUISES[disguise](secret)
    assert redactor.text(f"({written})") == f"({HIDDEN})"
    assert redactor.data(f"({written})".encode()) == f"({HIDDEN})".encode()


@pytest.mark.parametrize("before", ["", "u", "us", "use", "user:"])
@pytest.mark.parametrize("after", ["", "!", "!!", "!!!", "\nmore"])
def test_base64_of_more_than_the_secret_is_hidden_but_for_its_neighbours(before: str, after: str) -> None:
    encoded = base64.b64encode(f"{before}{KEY}{after}".encode()).decode()
    start, hidden, end = redactor.text(encoded).partition(HIDDEN)
    assert hidden
    assert len(start) <= -(-len(before) * 4 // 3)
    assert len(end) <= -(-len(after) * 4 // 3) + 3


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_secret_is_hidden_where_a_program_has_wrapped_it(ending: str) -> None:
    encoded = base64.b64encode(b"some words before it " + LONG.encode()).decode()
    shown = redactor.text(ending.join(textwrap.wrap(encoded, 76)) + f"{ending}next")
    assert shown == encoded[:28] + HIDDEN + f"{ending}next"
    hexadecimal = ending.join(textwrap.wrap(LONG.encode().hex(), 60))
    assert redactor.text(f"1{ending}2{ending}{hexadecimal}{ending}3") == f"1{ending}2{ending}{HIDDEN}{ending}3"


def test_a_secret_of_many_lines_is_hidden_as_one() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----"
    assert Redactor([pem]).text(f"a\n{pem}\nb") == f"a\n{HIDDEN}\nb"
    assert Redactor([pem]).text(json.dumps(pem)) == f'"{HIDDEN}"'


def test_secrets_that_overlap_are_hidden_to_the_end_of_the_last() -> None:
    both = Redactor(["abcdef-1234", "1234-ghijkl", "abcdef-1234-ghijkl-mno"])
    assert both.text("<abcdef-1234-ghijkl>") == f"<{HIDDEN}>"
    assert both.text("<abcdef-1234-ghijkl-mno>") == f"<{HIDDEN}>"
    assert both.text("<abcdef-1234abcdef-1234>") == f"<{HIDDEN}{HIDDEN}>"
    assert Redactor(["abcdabcd"]).text("<abcdabcdabcdabc>") == f"<{HIDDEN}abc>"


@pytest.mark.parametrize("size", [8, 9, 10, 11, 14, 15, 18, 19, 23, 40])
def test_a_secret_is_found_wherever_it_begins(size: int) -> None:
    secret = "aB3$eF6&hJ9(lM2)oP5_rS8+uV1-xY4=aD7:gH0;"[:size]
    one = Redactor([secret])
    assert {one.text("." * before + secret + ".") for before in range(40)} == {
        "." * before + HIDDEN + "." for before in range(40)
    }


@pytest.mark.parametrize(
    "value",
    [
        "",
        "ollama",
        "none",
        "EMPTY",
        "not-needed",
        "lm-studio",
        "sk-no-key-required",
        "changeme",
        "Password",
        "********",
    ],
)
def test_what_may_be_part_of_any_text_is_no_secret(value: str) -> None:
    text = f"This is {value} and ordinary."
    assert Redactor([value]).text(text) is text


def test_text_without_a_secret_is_the_same_object() -> None:
    text = f"Nearly {KEY[:-1]} and {KEY[1:]} and {LONG[1:]}.\r\n" * 100
    assert redactor.text(text) is text
    data = text.encode()
    assert redactor.data(data) is data


def test_half_a_sign_is_no_obstacle() -> None:
    assert redactor.text(f"\ud83d {KEY} \udc80") == f"\ud83d {HIDDEN} \udc80"


def test_a_secret_may_become_known_later() -> None:
    later = Redactor()
    assert later.text(KEY) is KEY
    later.learn([KEY, "none"])
    assert later.text(KEY) == HIDDEN
    later.learn([LONG])
    assert later.text(f"{KEY} {LONG} none") == f"{HIDDEN} {HIDDEN} none"


def shown(pieces: Iterable[str], by: Redactor = redactor) -> list[str]:
    stream = by.stream()
    return [*(stream.add(piece) for piece in pieces), stream.end()]


def test_a_secret_in_many_pieces_never_shows() -> None:
    assert shown(["The key: ", *KEY, "."]) == ["The key: ", *[""] * len(KEY), f"{HIDDEN}.", ""]


@pytest.mark.parametrize("secret", [KEY, AWKWARD, LONG], ids=["key", "awkward", "long"])
@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_disguised_secret_whose_last_sign_comes_late_never_shows(secret: str, disguise: str) -> None:
    written = DISGUISES[disguise](secret)
    one = Redactor([secret])
    assert "".join(shown(["(", written[:-1], written[-1:], ")"], one)) == f"({HIDDEN})"


def test_what_cannot_be_a_secret_is_shown_at_once() -> None:
    assert shown(["!!", "sk-", "live", "-x", "!"]) == ["!!", "", "", "sk-live-x", "!", ""]


def test_only_what_may_begin_a_secret_waits() -> None:
    assert shown(["All is well! sk-li"]) == ["All is well! ", "sk-li"]


def test_a_secret_at_the_very_end_is_hidden_there() -> None:
    assert shown(["= ", base64.b64encode(KEY.encode()).decode().rstrip("=")])[-1] == HIDDEN


def test_a_wrapped_secret_in_pieces_never_shows() -> None:
    wrapped = "\n".join(textwrap.wrap(base64.b64encode(LONG.encode()).decode(), 76))
    assert "".join(shown(["! ", *wrapped, "\n", "\n", "!"])) == f"! {HIDDEN}\n\n!"


def test_a_stream_without_secrets_passes_everything_on() -> None:
    assert shown(["sk-", KEY], Redactor()) == ["sk-", KEY, ""]


def test_what_waits_stays_small_whatever_comes() -> None:
    stream = redactor.byte_stream()
    shown = sum(len(stream.add(piece)) for piece in [KEY[:-1].encode(), *[b"\n" * 1000] * 100])
    assert 100_000 - shown < 5_000


def test_a_stream_of_bytes_may_be_cut_inside_of_a_sign() -> None:
    stream = redactor.byte_stream()
    data = f"ä {AWKWARD} ö".encode()
    assert b"".join([*(stream.add(bytes([byte])) for byte in data), stream.end()]) == f"ä {HIDDEN} ö".encode()


CALL = ToolCall(CallId("c1"), "echo", json.dumps({"text": f"say {AWKWARD}"}))
ARGUMENTS = f'{{"text": "say {HIDDEN}"}}'


@pytest.mark.parametrize(
    ("value", "redacted"),
    [
        (User((Text(KEY), Context(f"in {KEY}"))), User((Text(HIDDEN), Context(f"in {HIDDEN}")))),
        (MessageAdded(ToolResult(CallId("c"), "t", KEY)), MessageAdded(ToolResult(CallId("c"), "t", HIDDEN))),
        (CallEnded(ToolResult(CallId("c"), "t", KEY)), CallEnded(ToolResult(CallId("c"), "t", HIDDEN))),
        (CallIntended(TurnId("t"), CALL), CallIntended(TurnId("t"), ToolCall(CallId("c1"), "echo", ARGUMENTS))),
        (Noted(f"A plugin changed {KEY}"), Noted(f"A plugin changed {HIDDEN}")),
        (RoundEnded(Assistant((Thinking(KEY),))), RoundEnded(Assistant((Thinking(HIDDEN),)))),
        (Assistant((ToolCall(CallId(KEY), KEY, "{}"),)), Assistant((ToolCall(CallId(HIDDEN), HIDDEN, "{}"),))),
    ],
)
def test_all_text_of_what_is_kept_or_shown_is_redacted(value: object, redacted: object) -> None:
    assert redactor.value(value) == redacted


def test_what_holds_no_secret_is_the_very_same_object() -> None:
    answer = Assistant((Thinking("hm", "{seal}"), Text("a"), Text("b"), CALL), "calls", Usage(1, 2), "origin")
    clean = (
        answer,
        User((Text("hello"), Image("image/png", base64.b64encode(KEY.encode()).decode()))),
        CallStarted(CallId("c")),
        TurnBegan(SessionId("s"), TurnId("t"), "model", 1000),
    )
    one = Redactor([KEY])
    assert one.value(clean) is clean
    changed = one.value((*clean, Noted(KEY)))
    assert all(before is after for before, after in zip(clean, changed, strict=False))


def test_a_seal_stays_as_it_is_or_goes() -> None:
    sealed = json.dumps({"thinking": "hm", "signature": "ErUBCkYIBRgC"})
    assert redactor.value(Thinking(KEY, sealed)) == Thinking(HIDDEN, sealed)
    assert redactor.value(Thinking(KEY, json.dumps({"thinking": KEY}))) == Thinking(HIDDEN)


def test_a_secret_is_hidden_that_begins_in_one_part_of_an_answer_and_ends_in_another() -> None:
    answer = Assistant((Text(f"It is {KEY[:9]}"), Thinking("hm"), Text(f"{KEY[9:]}, s"), CALL))
    redacted = redactor.value(answer)
    assert redacted.text == f"It is {HIDDEN}, s"
    assert [type(part) for part in redacted.parts] == [Text, Thinking, Text, ToolCall]
