"""Text that is pasted."""

from tests.scenarios.screen.conftest import OpenScreen, said_to, see_quiet
from tests.scenarios.screen.emulator import END, ENTER, INTERRUPT, NEW_LINE, SEARCH, UP

from talaria.testing.servers.model_server import ModelServer

LONG = "\n".join(f"line {number} of the log" for number in range(1, 41))


def test_short_paste_stands_on_the_line_and_is_not_sent_by_itself(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say("Thank you.")
    screen = open_screen()
    screen.paste("def f():\r\n    return 1\r")
    screen.type("# mine")
    screen.see_typed("def f():\n    return 1\n# mine")
    assert server.requests == []
    screen.type(ENTER)
    screen.see("Thank you.")
    assert said_to(server.requests[0]) == ["def f():\n    return 1\n# mine"]


def test_long_paste_is_one_word_on_the_line_and_reaches_the_model_whole(
    open_screen: OpenScreen, server: ModelServer
) -> None:
    server.say("Read.", "Read again.")
    screen = open_screen()
    screen.type("what is wrong in ")
    screen.paste(LONG)
    screen.type(" and ")
    screen.paste("x" * 900)
    screen.type("?")
    screen.see_typed("what is wrong in [pasted #1: 40 lines] and [pasted #2: 900 characters]?")
    screen.type(ENTER)
    screen.see("Read.")
    whole = f"what is wrong in {LONG} and {'x' * 900}?"
    assert said_to(server.requests[0]) == [whole]
    shown = "\n".join(screen.scrollback)
    assert "› what is wrong in line 1 of the log" in shown
    assert "line 30 of the log" not in shown
    assert "more lines" in shown
    screen.type(UP)
    screen.see_typed("what is wrong in [pasted #1: 40 lines] and [pasted #2: 900 characters]?")
    screen.type(ENTER)
    screen.see("Read again.")
    assert said_to(server.requests[1]) == [whole, whole]
    screen.type(SEARCH)
    screen.see("── Input history")
    screen.type("line 17 of")
    screen.see("search: line 17 of", "▸ what is wrong in [pasted #1: 40 lines]")
    screen.type(ENTER)
    screen.see_gone("Input history")
    screen.type(f"{INTERRUPT}{END}")
    assert screen.end() == 0

    screen = open_screen()
    screen.type(UP)
    screen.see("line 40 of the log")  # by then nobody knows any more which part was pasted
    server.say("And again.")
    screen.type(ENTER)
    screen.see("And again.")
    assert said_to(server.requests[2]) == [whole]


def test_what_stands_for_a_paste_is_deleted_like_any_word(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say("Good.")
    screen = open_screen()
    screen.paste(LONG)
    screen.see_typed("[pasted #1: 40 lines]")
    screen.type(f"{INTERRUPT}[pasted #7: 40 lines]")
    screen.see_typed("[pasted #7: 40 lines]")
    screen.type(f"{NEW_LINE}is a word{ENTER}")
    screen.see("Good.")
    assert said_to(server.requests[0]) == ["[pasted #7: 40 lines]\nis a word"]


def test_paste_is_told_apart_from_typing_also_while_something_is_printed(
    open_screen: OpenScreen, server: ModelServer
) -> None:
    server.say("\n\n".join(f"Paragraph {number}." for number in range(20)))
    screen = open_screen()
    screen.say("talk")
    screen.see("Paragraph 19.")
    see_quiet(screen)
    assert screen.takes_pastes
    assert b"\x1b[?2004l" not in screen.raw, "it was so all the time"
    screen.type(END)
    assert screen.end() == 0
    assert screen.is_restored


def test_control_signs_in_a_paste_are_shown_and_not_obeyed(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say("Harmless.")
    screen = open_screen()
    screen.paste("a\x1b]0;owned\x07b\x1b[2Jc")
    screen.see_typed("a^[]0;owned^Gb^[[2Jc")
    screen.type(ENTER)
    screen.see("Harmless.", r"› a\x1b]0;owned\x07b\x1b[2Jc")
    assert screen.titles == []
    assert said_to(server.requests[0]) == ["a\x1b]0;owned\x07b\x1b[2Jc"]
