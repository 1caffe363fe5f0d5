"""What a person does while the model works."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scenarios.screen.conftest import Held, OpenScreen, Run, said_to, see_quiet
from tests.scenarios.screen.emulator import DETAILS, END, ENTER, ESCAPE, INTERRUPT, PATIENCE_S, STEER, Terminal

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Faults, Reply, call


@pytest.fixture
def working(open_screen: OpenScreen, server: ModelServer, held: Held) -> Callable[..., Terminal]:
    """A screen with a turn that runs until it is let go."""

    def start(**options: int) -> Terminal:
        server.say(held.reply)
        screen = open_screen(**options)
        screen.say("go")
        screen.see("Working … ", " terminal  until [ -e go ]")
        return screen

    return start


def test_lines_wait_for_the_turn_and_are_answered_in_order(
    working: Callable[..., Terminal], server: ModelServer, held: Held
) -> None:
    screen = working()
    screen.say("second")
    screen.say("/queue third")
    screen.see("  queued: second", "  queued: third")
    screen.wait(lambda: "2 queued" in screen.status, "how many wait")
    screen.type("not yet")
    server.say("Answer one.", "Answer two.", "Answer three.")
    held.let_go()
    screen.see("Answer three.")
    see_quiet(screen)
    screen.see_typed("not yet")
    told = [line for line in screen.scrollback if line.startswith(("› ", "Answer"))]
    assert told == [
        "› go",
        "› /queue third",
        "Answer one.",
        "› second",
        "Answer two.",
        "› third",
        "Answer three.",
        "› not yet",
    ]
    assert "queued" not in screen.text
    assert said_to(server.requests[-1]) == ["go", "second", "third"]


@pytest.mark.clause("H-14")
def test_a_handoff_is_refused_while_the_turn_runs(
    working: Callable[..., Terminal], server: ModelServer, held: Held
) -> None:
    screen = working()
    screen.say("/handoff telegram")
    screen.see("still working on an answer")
    assert "queued" not in screen.status
    server.say("Done.")
    held.let_go()
    screen.see("Done.")


def test_steering_reaches_the_model_at_its_next_step(
    working: Callable[..., Terminal], server: ModelServer, held: Held
) -> None:
    screen = working()
    screen.type(f"rather quickly{STEER}")
    screen.see("  ↪ rather quickly  (sent at its next step)")
    screen.say("/steer and in blue")
    screen.see("  ↪ and in blue  (sent at its next step)")
    screen.see_typed("")
    server.say("Quick and blue.")
    held.let_go()
    screen.see("Quick and blue.")
    assert len(server.requests) == 2
    told = "\n".join(said_to(server.requests[1]))
    assert "rather quickly" in told
    assert "and in blue" in told
    see_quiet(screen)
    server.say("Heard.")
    screen.type(f"nothing runs now{STEER}")  # then it is a message
    screen.see("› nothing runs now", "Heard.")


ROWS = [f"row_{number}" for number in range(200)]


@pytest.mark.parametrize(
    "block", [" ".join(ROWS), "```text\n{}\n```".format("\n".join(ROWS))], ids=["a paragraph", "code"]
)
def test_steering_is_noted_behind_the_block_that_is_being_written(
    open_screen: OpenScreen, server: ModelServer, block: str
) -> None:
    server.say(Reply(f"{block}\n\nThe end.", faults=Faults(chunk_delay_s=0.003)), "Blue.")
    screen = open_screen(rows=40)
    screen.say("go")
    screen.see("row_40")
    screen.type(f"in blue{STEER}")
    screen.see("  ↪ in blue  (sent at its next step)")
    screen.see("The end.", "Blue.")
    see_quiet(screen)
    lines = screen.scrollback
    rows = [place for place, line in enumerate(lines) if "row_" in line]
    assert rows == list(range(rows[0], rows[-1] + 1)), "nothing stands inside the block"
    (noted,) = [place for place, line in enumerate(lines) if "↪ in blue" in line]
    assert noted > rows[-1]


@pytest.mark.parametrize("way", [INTERRUPT, f"/stop{ENTER}", END], ids=["Ctrl-C", "/stop", "Ctrl-D"])
def test_call_that_is_stopped_has_its_line(working: Callable[..., Terminal], way: str) -> None:
    screen = working(rows=40)
    screen.type(way)
    screen.see("stopped", "To resume: " if way == END else "Interrupted.")
    (stopped,) = [line for line in screen.scrollback if " terminal  until [ -e go ]" in line]
    assert stopped.startswith("  ✗ terminal  until [ -e go ]; do ")
    assert re.search(r"  stopped( · \d+\.\d s)?$", stopped)
    if way == END:
        return
    see_quiet(screen)
    lines = screen.lines
    assert lines.index(stopped) < lines.index("Interrupted.")
    screen.type(DETAILS)
    screen.see("● terminal", "  ─ stopped")


def test_stop_ends_the_turn_and_drops_what_waits(working: Callable[..., Terminal], server: ModelServer) -> None:
    screen = working()
    screen.say("never said")
    screen.see("queued: never said")
    screen.say("/stop")
    screen.see("Stopping. Dropped 1 queued message.", "Interrupted.")
    see_quiet(screen)
    screen.see_typed("")
    server.say("Still here.")
    screen.say("are you there")
    screen.see("Still here.")
    assert said_to(server.requests[-1]) == ["go", "are you there"]


def test_stop_says_that_nothing_runs(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen()
    screen.say("/stop")
    screen.wait(lambda: any(one in screen.text for one in ("Nothing is running.", "Stopping.")))
    assert "Nothing is running." in screen.text


def test_commands_that_only_look_are_heeded_while_it_works(working: Callable[..., Terminal]) -> None:
    screen = working(rows=60)
    screen.say("/status")
    screen.see("model custom:test-model")
    screen.say("/help")
    screen.see("Conversation:", "Information:", "Leaving:", "Ctrl-C stops an answer.")
    screen.see("Working … ")


def latest(talaria: Run) -> str:
    """The latest conversation as it is kept."""
    return talaria("sessions", "export", talaria("sessions", "list").stdout.split()[0]).stdout


STREAMED = "The first paragraph is whole.\n\nThe second one is beg"


@pytest.mark.parametrize("key", [INTERRUPT, ESCAPE], ids=["Ctrl-C", "Esc"])
def test_interrupting_once_keeps_what_was_done(
    open_screen: OpenScreen, server: ModelServer, talaria: Run, key: str
) -> None:
    whole = Reply(f"{STREAMED}un.", chunk_chars=len(STREAMED), faults=Faults(stall_at=620))
    server.say(whole)
    screen = open_screen()
    screen.say("tell me")
    screen.see("The second one is beg")
    screen.say("queued one")
    screen.say("queued two")
    screen.type("begun")
    screen.see("queued: queued two", "› begun")
    screen.type(key)
    screen.see("Interrupted.")
    see_quiet(screen)
    assert [line for line in screen.scrollback if line.startswith("The ")] == STREAMED.split("\n\n")
    screen.wait(lambda: all(line in screen.typed for line in ("queued one", "queued two", "begun")), "what waited")
    kept = latest(talaria)
    assert "The first paragraph is whole." in kept
    assert "The second one is beg" in kept
    screen.type(INTERRUPT)  # empties the line
    screen.see_typed("")
    server.say("Going on.")
    screen.say("go on")
    screen.see("Going on.")
    assert said_to(server.requests[-1])[-1] == "go on"


def test_interrupting_twice_leaves(working: Callable[..., Terminal], talaria: Run) -> None:
    screen = working()
    screen.type(f"{INTERRUPT}{INTERRUPT}")
    assert screen.end() in (0, 130)
    assert screen.is_restored
    assert "until [ -e go ]" in latest(talaria)


def test_control_d_leaves_while_it_works(working: Callable[..., Terminal]) -> None:
    screen = working()
    screen.type(END)
    assert screen.end() in (0, 130)
    assert screen.is_restored


def test_background_turn_reports_when_it_is_done(
    open_screen: OpenScreen, server: ModelServer, held: Held, talaria: Run
) -> None:
    server.say(held.reply)
    screen = open_screen()
    screen.say("/background count the **feathers**")
    screen.see("Background #1 started.")
    screen.wait(lambda: "1 in the background" in screen.status, "what goes on beside")
    server.wait_for_requests(1)
    server.say("Meanwhile.")
    screen.say("and here?")
    screen.see("Meanwhile.")
    screen.type("typing on")
    server.say("There are **twelve**.")
    held.let_go()
    screen.see("Background #1: count the **feathers**", "There are twelve.")
    screen.see_typed("typing on")
    screen.wait(lambda: "in the background" not in screen.status, "nothing goes on beside")
    assert said_to(server.requests[-1]) == ["count the **feathers**"]


def test_killed_turn_is_finished_on_the_screen_by_going_on_with_it(
    working: Callable[..., Terminal], open_screen: OpenScreen, server: ModelServer
) -> None:
    working().kill()
    server.say("Finished after all.")
    screen = open_screen("-c")
    screen.see("The last turn was interrupted; finishing it.", "Finished after all.")
    see_quiet(screen)
    server.say("And more.")
    screen.say("more")
    screen.see("And more.")
    see_quiet(screen)
    screen.type(END)
    assert screen.end() == 0


def test_conversation_that_is_gone_on_with_is_recalled_and_waits(
    open_screen: OpenScreen, server: ModelServer, talaria: Run
) -> None:
    server.say("Forty-two.")
    talaria("-q", "What is the answer?")
    screen = open_screen("-c")
    screen.see("What is the answer? · 2 messages", "› What is the answer?", "Forty-two.")
    see_quiet(screen)
    server.say("Seven.")
    screen.say("And now?")
    screen.see("Seven.")
    assert said_to(server.requests[-1]) == ["What is the answer?", "And now?"]


@pytest.mark.parametrize(("mode", "answered"), [("steer", ["go"]), ("interrupt", ["go", "at once"])])
def test_what_enter_does_meanwhile_is_a_setting(
    working: Callable[..., Terminal], server: ModelServer, held: Held, home: Path, mode: str, answered: list[str]
) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write(f"display: {{busy_mode: {mode}}}\n")
    screen = working()
    server.say("So be it.")
    screen.type(f"at once{ENTER}")
    screen.see("at once")
    if mode == "steer":
        screen.see("  ↪ at once")
        held.let_go()
    screen.see("So be it.")
    assert said_to(server.requests[-1])[: len(answered)] == answered


def test_typing_while_much_is_printed_loses_no_key(open_screen: OpenScreen, server: ModelServer) -> None:
    text = "\n\n".join(f"Paragraph {number}." for number in range(200))
    server.say(Reply(text, chunk_chars=14, faults=Faults(chunk_delay_s=0.002)), "I heard all of it.")
    screen = open_screen()
    screen.say("talk")
    screen.see("Paragraph 3.")
    typed = ""
    while len(typed) < 75:
        typed += "z"
        screen.type("z")  # whatever is being printed right now
        assert screen.take(PATIENCE_S)
    screen.type(ENTER)
    screen.see("I heard all of it.")
    assert said_to(server.requests[-1]) == ["talk", typed]
    assert [line for line in screen.scrollback if "Paragraph" in line] == text.split("\n\n")
    assert not [line for line in screen.scrollback if line.startswith("z")]


def test_command_that_fails_is_a_sentence_and_its_call_is_marked(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say(Reply(calls=(call("terminal", command="false"),)), "It failed.")
    screen = open_screen()
    screen.say("go")
    screen.see("terminal  false  ", "It failed.")
