"""What holds for every secret, every text and every way in which it comes."""

import base64
import json
from itertools import pairwise
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from talaria.core.redaction import Redactor, disguises, is_secret
from talaria.core.secret_finder import HIDDEN

SIGNS = "abAB01 /+-_=%\\\"'é€\n:."
secrets = st.lists(
    st.text(SIGNS, min_size=8, max_size=30).filter(lambda value: is_secret(value) and "\n" not in value),
    min_size=1,
    max_size=4,
)


def forms(secret: str) -> list[str]:
    """Made here by other means than in what is tested."""
    raw = secret.encode()
    return [
        secret,
        secret[::-1],
        raw.hex(),
        raw.hex().upper(),
        quote(raw, safe=""),
        "".join(f"%{byte:02X}" for byte in raw),
        json.dumps(secret)[1:-1],
        *(in_base64(raw, before) for before in range(3)),
    ]


def in_base64(raw: bytes, before: int) -> str:
    """The signs that stay the same, whatever stands around the secret."""
    low, high = (base64.b64encode(other * before + raw + other * 3).decode() for other in (b"\0", b"\xff"))
    return "".join(one if one == two else " " for one, two in zip(low, high, strict=True)).strip()


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], str]:
    """Secrets, and a text with some of them in it: whole, disguised, cut short, and as neighbours."""
    known = draw(secrets)
    whole = st.sampled_from([form for secret in known for form in forms(secret)])
    cut_short = st.sampled_from([secret[:size] for secret in known for size in range(1, 12)])
    return known, "".join(draw(st.lists(st.text(SIGNS, max_size=12) | whole | cut_short, max_size=6)))


@st.composite
def pieces(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    known, text = draw(cases())
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return known, [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


@given(cases())
def test_no_secret_is_left_in_any_form(case: tuple[list[str], str]) -> None:
    known, text = case
    shown = Redactor(known).text(text)
    assert not [form for secret in known for form in forms(secret) if form in shown.replace("\n", "")]


@given(pieces())
def test_a_text_in_pieces_is_shown_as_the_whole(case: tuple[list[str], list[str]]) -> None:
    known, parts = case
    redactor = Redactor(known)
    stream = redactor.stream()
    assert "".join([*map(stream.add, parts), stream.end()]) == redactor.text("".join(parts))


@given(pieces())
def test_data_in_pieces_is_as_the_text(case: tuple[list[str], list[str]]) -> None:
    known, parts = case
    redactor = Redactor(known)
    stream = redactor.byte_stream()
    data = "".join(parts).encode()
    shown = redactor.text("".join(parts)).encode()
    assert redactor.data(data) == shown
    assert b"".join([*(stream.add(bytes([byte])) for byte in data), stream.end()]) == shown


@given(pieces())
def test_nothing_waits_but_what_may_begin_a_secret(case: tuple[list[str], list[str]]) -> None:
    known, parts = case
    redactor = Redactor(known)
    begins = [form.replace("\n", "") for secret in known for form in disguises(secret)]
    stream = redactor.stream()
    shown = read = ""
    for part in parts:
        read += part
        shown += stream.add(part)
        if HIDDEN in redactor.text(read):
            return
        waiting = read.removeprefix(shown)
        assert read == shown + waiting
        assert not waiting or any(form.startswith(waiting.replace("\n", "")) for form in begins)


@given(secrets, st.text("?!~§ \n", max_size=200))
def test_text_without_secrets_comes_through_unchanged_and_at_once(known: list[str], text: str) -> None:
    redactor = Redactor([secret.replace(" ", "_") for secret in known])
    assert redactor.text(text) is text
    stream = redactor.stream()
    assert [*map(stream.add, text), stream.end()] == [*text, ""]
