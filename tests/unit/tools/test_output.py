"""Output on its way into the model's sight and into the file of the rest: no known secret gets into either."""

from pathlib import Path

import pytest

from talaria.core.redaction import Redactor
from talaria.tools.output import HEAD_BYTES, TAIL_BYTES, CapturedOutput

SECRET = "sk-live-4f7a1c0299bd83e65d"
NOISE = b"some words\n" * 4_000


@pytest.mark.parametrize("cut", [1, 7, len(SECRET) - 1])
@pytest.mark.parametrize("place", ["head", "middle", "tail"])
def test_a_secret_is_neither_shown_nor_kept_however_it_comes(tmp_path: Path, cut: int, place: str) -> None:
    spill = tmp_path / "spill" / "output.txt"
    output = CapturedOutput(spill, Redactor([SECRET]))
    before, after = {"head": (b"", NOISE * 2), "middle": (NOISE, NOISE), "tail": (NOISE * 2, b"")}[place]
    for chunk in (before, SECRET[:cut].encode(), SECRET[cut:].encode(), after):
        output.add(chunk)
    output.close()
    assert len(NOISE) * 2 > HEAD_BYTES + TAIL_BYTES
    assert SECRET.encode() not in spill.read_bytes()
    assert b"some words" in spill.read_bytes()
    assert SECRET not in output.text()
