"""Persian, Hindi, emoji families: what is joined by characters that nobody sees, typed and shown."""

from pathlib import Path

from tests.scenarios.screen.conftest import OpenScreen, said_to, see_quiet
from tests.scenarios.screen.emulator import ENTER, Terminal, talaria

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

FAMILY, HEART, ENGLAND = (
    "👨\u200d👩\u200d👧\u200d👦",
    "❤\ufe0f",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
)
PERSIAN, HINDI = "می\u200cخواهم", "क्\u200dष"  # noqa: RUF001
PROSE = f"{FAMILY} {HEART} {ENGLAND} {PERSIAN} {HINDI}"


def test_joiners_are_printed_in_prose_and_shown_in_latin_words_commands_and_questions(
    open_screen: OpenScreen, server: ModelServer, unconfined: None
) -> None:
    server.say(
        Reply(calls=(call("terminal", command=f"echo {PERSIAN} | tee pay\u200dpal"),)),
        Reply(f"{PROSE} in words, pay\u200dpal, a\u202eb.", chunk_chars=1),
    )
    screen = open_screen(columns=120)
    screen.say(f"say {PROSE}")
    screen.see("May terminal do this?", r"echo می\u200cخواهم | tee pay\u200dpal")  # noqa: RUF001
    screen.type(f"y{ENTER}")
    screen.wait(lambda: f"{PROSE} in words, pay\\u200dpal, a\\u202eb." in screen.raw.decode(), "the answer")
    see_quiet(screen)
    assert f"› \x1b[0m\x1b[1msay {PROSE}" in screen.raw.decode()
    assert r"echo می\u200cخواهم | tee pay\u200dpal" in screen.text  # noqa: RUF001  (the line of the call)
    screen.say(f"/title {FAMILY}")
    screen.wait(lambda: screen.raw.decode().rpartition("is called")[2].count(FAMILY) > 1, "the title in the status")
    screen.type("/new\r/resume\r")
    screen.see("Which conversation?")
    screen.wait(
        lambda: f" {FAMILY}" in screen.raw.decode().rpartition("Which conversation?")[2], "the title in the list"
    )


def test_joiners_reach_a_plain_terminal_wherever_the_answer_is_cut(
    environment: dict[str, str], server: ModelServer
) -> None:
    server.say(Reply(f"{PROSE} pay\u200dpal", chunk_chars=1))
    with Terminal(talaria("-q", "hi"), {**environment, "TERM": "dumb"}) as screen:
        assert screen.end() == 0
        assert f"{PROSE} paypal" in screen.raw.decode()


def test_file_names_are_offered_with_what_is_hidden_in_them(
    open_screen: OpenScreen, server: ModelServer, work: Path
) -> None:
    (work / f"n{PERSIAN}.md").touch()
    screen = open_screen()
    screen.type("@n")
    screen.see(r"  nمی\u200cخواهم.md")  # noqa: RUF001


def test_typing_moves_and_deletes_whole_characters(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say("Yes.")
    left, right, backspace, delete = "\x1b[D", "\x1b[C", "\x7f", "\x1b[3~"
    screen = open_screen()
    screen.paste(f"a{FAMILY}b{HINDI}c{PERSIAN}{HEART}d")
    screen.type(f"{backspace}{backspace}")  # d, the heart
    screen.type(f"{left * 8}1")  # before the c: seven letters, of which one is followed by a joiner
    screen.type(f"{left * 2}{delete}")  # the syllable
    screen.type(f"{left}{backspace}")  # the family
    screen.type(f"{right}2{ENTER}")
    screen.see("Yes.")
    assert said_to(server.requests[0]) == [f"ab21c{PERSIAN}"]
