"""The line to type on."""

import stat
from pathlib import Path

from prompt_toolkit.history import FileHistory
from tests.scenarios.screen.conftest import RUNNING, OpenScreen, said_to
from tests.scenarios.screen.emulator import (
    DETAILS,
    DOWN,
    END,
    ENTER,
    ESCAPE,
    INTERRUPT,
    NEW_LINE,
    SEARCH,
    UP,
)

from talaria.testing.servers.model_server import ModelServer


def test_what_is_typed_before_all_is_loaded_is_kept_and_sent_in_order(
    open_screen: OpenScreen, server: ModelServer
) -> None:
    server.say("Answer one.", "Answer two.")
    screen = open_screen(is_ready=False)
    screen.type(f"first{ENTER}second{ENTER}third, unsent")
    screen.see("Answer one.", "Answer two.")
    screen.see_typed("third, unsent")
    told = [line for line in screen.scrollback if line]
    order = [told.index(line) for line in ("› first", "Answer one.", "› second", "Answer two.")]
    assert order == sorted(order)
    assert said_to(server.requests[1]) == ["first", "second"]


def test_letters_typed_before_there_is_a_prompt_stand_on_the_line(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen(is_ready=False)
    screen.type("as soon as possible")
    screen.see_typed("as soon as possible")
    assert screen.cursor[0] == len("› as soon as possible")


def test_line_is_edited_in_several_lines(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say("I see.")
    screen = open_screen()
    screen.type(f"one{NEW_LINE}two{ESCAPE}{ENTER}thre")
    screen.see_typed("one\ntwo\nthre")
    screen.type(f"{UP}{UP}\x05 and a half{DOWN}{DOWN}\x05e")  # Ctrl-E: to the end of the line
    screen.see_typed("one and a half\ntwo\nthree")
    screen.type(ENTER)
    screen.see("› one and a half", "  two", "  three", "I see.")
    assert said_to(server.requests[0]) == ["one and a half\ntwo\nthree"]
    screen.see_typed("")


def test_what_was_typed_comes_back_over_restarts(open_screen: OpenScreen, server: ModelServer, home: Path) -> None:
    server.say("One.", "Two.", "Three.")
    screen = open_screen()
    for line, answer in (("the first words", "One."), ("more\x0aof them", "Two."), ("the last words", "Three.")):
        screen.say(line)
        screen.see(answer)
    screen.type(UP)
    screen.see_typed("the last words")
    screen.type(UP)
    screen.see_typed("more\nof them")
    screen.type(f"{INTERRUPT}{END}")
    assert screen.end() == 0
    assert stat.S_IMODE((home / "history").stat().st_mode) == 0o600

    screen = open_screen()
    screen.type(UP)
    screen.see_typed("the last words")
    screen.type(INTERRUPT)
    screen.see_typed("")
    screen.type(SEARCH)
    screen.see("── Input history")
    screen.type("first")
    screen.see("search: first", "▸ the first words")
    screen.see_gone("the last words")
    screen.type(ENTER)
    screen.see_gone("Input history")
    screen.see_typed("the first words")
    screen.type(f"{INTERRUPT}kept{SEARCH}")
    screen.see("── Input history")
    screen.type("nowhere")
    screen.see("no matches")
    screen.type(ENTER)  # chooses nothing
    screen.type(ESCAPE)
    screen.see_gone("Input history")
    screen.see_typed("kept")


def test_only_the_last_lines_that_were_typed_are_kept(open_screen: OpenScreen, server: ModelServer, home: Path) -> None:
    typed = home / "history"
    lines = [f"line {number}\n# of two" for number in range(2_100)]
    before = FileHistory(str(typed))
    for line in lines:
        before.store_string(line)
    server.say("Yes.")
    screen = open_screen()
    screen.say("the last one")
    screen.see("Yes.")
    screen.type(END)
    assert screen.end() == 0
    kept = [*lines[-1_999:], "the last one"]
    assert list(FileHistory(str(typed)).load_history_strings()) == kept[::-1]
    assert stat.S_IMODE(typed.stat().st_mode) == 0o600
    assert [file.name for file in home.iterdir() if "history" in file.name] == ["history"]


def test_control_c_empties_the_line_and_leaves_only_the_second_time(
    open_screen: OpenScreen, server: ModelServer
) -> None:
    screen = open_screen()
    screen.type("not this")
    screen.see_typed("not this")
    screen.type(INTERRUPT)
    screen.see_typed("")
    screen.type(INTERRUPT)
    screen.see("Press Ctrl-C again")
    screen.wait(lambda: screen.takes_pastes)
    assert not screen.is_restored
    screen.type(INTERRUPT)
    assert screen.end() == 0
    assert screen.is_restored


def test_control_d_deletes_a_letter_and_leaves_an_empty_line(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen()
    screen.type("abc\x01")  # Ctrl-A: to its beginning
    screen.type(END)
    screen.see_typed("bc")
    screen.type(f"{INTERRUPT}{END}")
    assert screen.end() == 0
    assert screen.is_restored
    assert server.requests == []
    assert RUNNING not in "\n".join(screen.scrollback)


def test_details_of_nothing_are_said_to_be_none(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen()
    screen.type(DETAILS)
    screen.see("No tools were used")


def test_a_slash_command_that_does_not_exist_is_told(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen()
    screen.say("/statsu")
    screen.see("There is no command /statsu; did you mean /status?")
    screen.say("/tit")
    screen.see("There is nothing to name yet")
    assert server.requests == []
