"""The terminal's answer to what its background is."""

import os
import pty
from io import StringIO

import pytest
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.output.vt100 import Vt100_Output

from talaria.cli.screen.palette import ASK_BACKGROUND, Background, ask_background

REPLY = "\x1b]11;rgb:ffff/ffff/ffff\x1b\\"


@pytest.mark.parametrize("cut", range(2, len(REPLY)))
def test_the_answer_is_taken_out_of_the_keys_wherever_it_is_cut(cut: int) -> None:
    master, slave = pty.openpty()
    written, heard = StringIO(), list[Background]()
    with os.fdopen(slave) as terminal:
        keys = Vt100Input(terminal)
        ask_background(keys, Vt100_Output(written, lambda: Size(24, 80)), heard.append)
        assert written.getvalue() == ASK_BACKGROUND
        pressed = list[str]()
        with keys.raw_mode():
            for part in (f"a{REPLY[:cut]}", f"{REPLY[cut:]}b", "c"):
                os.write(master, part.encode())
                pressed += [key.data for key in (*keys.read_keys(), *keys.flush_keys())]
    os.close(master)
    assert (pressed, heard) == (["a", "b", "c"], ["light"])
