"""One conversation on two screens: the second shows what the first one runs, and can step in."""

import subprocess
from pathlib import Path

import pytest
from tests.scenarios.screen.conftest import WAIT, Held, OpenScreen, Run, said_to, see_quiet
from tests.scenarios.screen.emulator import DOWN, END, ENTER, INTERRUPT, Terminal, talaria

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

OTHER_RUNNING = " s · /stop stops"


def first_lines(server: ModelServer) -> list[str]:
    """What the person has said, without what is added to it: another process has no shell of the first one."""
    return [text.split("\n")[0] for text in said_to(server.requests[-1])]


@pytest.fixture
def runner(open_screen: OpenScreen, server: ModelServer, held: Held) -> Terminal:
    """In the middle of a turn, with words and a command."""
    server.say(Reply("Let me **wait**.", calls=(call("terminal", command=WAIT),)))
    screen = open_screen()
    screen.say("go")
    screen.see("Working … ", " terminal  until [ -e go ]")
    return screen


def test_a_late_joiner_sees_the_turn_so_far_and_then_the_rest_once(
    runner: Terminal, open_screen: OpenScreen, server: ModelServer, held: Held
) -> None:
    watcher = open_screen("attach")
    watcher.see("› go", "Let me wait.", " terminal  until [ -e go ]", OTHER_RUNNING)
    server.say("Waited.")
    held.let_go()
    for screen in (runner, watcher):
        screen.see("Waited.")
        see_quiet(screen, OTHER_RUNNING)
        for words in ("Let me wait.", "✓ terminal", "Waited."):
            assert sum(words in line for line in screen.scrollback) == 1
    server.say("Second answer.")
    runner.say("second")
    watcher.see("› second", "Second answer.")
    server.say("From the other side.")
    watcher.say("third")  # nothing runs: the watcher runs this turn itself
    for screen in (runner, watcher):
        screen.see("› third", "From the other side.")
        see_quiet(screen, OTHER_RUNNING)
    assert first_lines(server) == ["go", "second", "third"]
    assert sum("From the other side." in line for line in watcher.lines) == 1


def test_a_watcher_steers_and_what_it_queues_waits_for_the_turn(
    runner: Terminal, open_screen: OpenScreen, server: ModelServer, held: Held
) -> None:
    watcher = open_screen("attach")
    watcher.see(OTHER_RUNNING)
    watcher.say("/steer be brief")
    watcher.see("↪ be brief")
    watcher.say("and then this")
    watcher.see("  queued: and then this")
    runner.see("  queued by local, terminal: and then this")
    server.say("Brief.", "Then that.")
    held.let_go()
    runner.see("↪ be brief", "Brief.", "› and then this", "Then that.")
    assert sum("↪ be brief" in line for line in watcher.lines) == 1
    watcher.see("Then that.")
    assert first_lines(server) == ["go", "be brief", "and then this"]
    for screen in (runner, watcher):
        see_quiet(screen, "queued")


def test_what_a_killed_terminal_has_queued_is_asked_by_the_one_that_ran_the_turn(
    runner: Terminal, open_screen: OpenScreen, server: ModelServer, held: Held
) -> None:
    watcher = open_screen("attach")
    watcher.see(OTHER_RUNNING)
    watcher.say("first of mine")
    watcher.say("second of mine")
    watcher.see("  queued: first of mine", "  queued: second of mine")
    watcher.kill()
    idle = open_screen("attach")
    idle.see("  queued by local, terminal: second of mine")
    runner.say("mine")
    runner.see("  queued by local, terminal: second of mine", "  queued: mine")
    server.say("Done.", "Answer one.", "Answer two.", "Answer three.")
    held.let_go()
    runner.see("› first of mine", "Answer one.", "› second of mine", "Answer two.", "› mine", "Answer three.")
    for screen in (runner, idle):
        screen.see("Answer three.")
        see_quiet(screen, "queued", OTHER_RUNNING)
        asked = [line for line in screen.scrollback if line.startswith("› ")]
        assert asked[:4] == ["› go", "› first of mine", "› second of mine", "› mine"]
    assert first_lines(server) == ["go", "first of mine", "second of mine", "mine"]


def test_what_is_queued_when_all_are_killed_is_asked_by_whoever_opens_the_conversation(
    runner: Terminal, open_screen: OpenScreen, server: ModelServer
) -> None:
    watcher = open_screen("attach")
    watcher.see(OTHER_RUNNING)
    watcher.say("and then this")
    watcher.see("  queued: and then this")
    runner.say("and mine")
    runner.see("  queued: and mine")
    runner.kill()
    watcher.kill()
    server.say("Finished.", "Answer one.", "Answer two.")
    screen = open_screen("-c")
    screen.see("Finished.", "› and then this", "Answer one.", "› and mine", "Answer two.")
    see_quiet(screen, "queued")
    said = [line for text in said_to(server.requests[-1]) for line in text.split("\n")]
    assert [line for line in said if not line.startswith("[")] == ["go", "and then this", "and mine"]


def test_queued_lines_are_taken_back_by_their_sender_and_dropped_by_stop(
    runner: Terminal, open_screen: OpenScreen, server: ModelServer
) -> None:
    watcher = open_screen("attach")
    watcher.see(OTHER_RUNNING)
    watcher.say("taken back")
    watcher.see("  queued: taken back")
    watcher.type(INTERRUPT)
    watcher.see_typed("taken back")
    runner.wait(lambda: "queued" not in runner.text, "nothing is queued")
    watcher.type(ENTER)
    runner.see("  queued by local, terminal: taken back")
    runner.say("/stop")
    runner.see("Stopping. Dropped 1 queued message.", "Interrupted.")
    for screen in (runner, watcher):
        see_quiet(screen, OTHER_RUNNING, "queued by", "queued: taken")
    server.say("Still here.")
    watcher.say("are you there")
    runner.see("Still here.")
    assert first_lines(server) == ["go", "are you there"]


def test_a_watcher_stops_the_turn_and_leaves_without_stopping_it(
    runner: Terminal, open_screen: OpenScreen, held: Held
) -> None:
    watcher = open_screen("attach")
    watcher.see(OTHER_RUNNING)
    watcher.type(INTERRUPT)
    watcher.see("This turn runs in another process; /stop stops it.")
    watcher.type(END)
    assert watcher.end() == 0
    runner.see("Working … ")
    watcher = open_screen("attach")
    watcher.see(OTHER_RUNNING)
    watcher.say("/stop")
    for screen in (runner, watcher):
        screen.see("Interrupted.")
        see_quiet(screen, OTHER_RUNNING)
        (stopped,) = [line for line in screen.scrollback if " terminal  until [ -e go ]" in line]
        assert stopped.startswith("  ✗ terminal")


@pytest.mark.usefixtures("unconfined")
@pytest.mark.parametrize("is_answered_by_watcher", [True, False])
def test_a_question_is_answered_once_on_either_screen(
    open_screen: OpenScreen, server: ModelServer, work: Path, *, is_answered_by_watcher: bool
) -> None:
    server.say(Reply(calls=(call("terminal", command="touch ran"),)), "All told.")
    runner = open_screen()
    runner.say("go")
    runner.see("── May terminal do this?", " · Enter: answer")
    watcher = open_screen("attach")
    box = watcher.see("── May terminal do this?", "touch ran", " · Enter: answer")
    assert "You are asked because it runs outside of any sandbox" in box
    assert not (work / "ran").exists()
    first, second = (watcher, runner) if is_answered_by_watcher else (runner, watcher)
    first.type(DOWN)
    first.see("▸ Yes, this once")
    first.type(ENTER)
    second.see("Allowed, this once. (answered by local, terminal)")
    for screen in (runner, watcher):
        screen.see("All told.")
        see_quiet(screen, "May terminal do this?", OTHER_RUNNING)
    assert (work / "ran").exists()


@pytest.mark.usefixtures("unconfined")
def test_a_no_of_the_watcher_says_what_to_do_instead(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say(Reply(calls=(call("terminal", command="touch ran"),)), "All told.")
    runner = open_screen()
    runner.say("go")
    runner.see("── May terminal do this?")
    watcher = open_screen("attach")
    watcher.see("── May terminal do this?", " · Enter: answer")
    watcher.type("i")
    watcher.see("▸ No, and tell it what to do instead")
    watcher.type(ENTER)
    watcher.see("── What to do instead?")
    watcher.type("use the cache" + ENTER)
    runner.see("Denied. Instead: use the cache (answered by local, terminal)", "All told.")
    assert "Do this instead: use the cache" in str(server.requests[-1].json)


def test_a_killed_runner_is_told_and_the_watcher_goes_on_with_the_conversation(
    runner: Terminal, open_screen: OpenScreen, server: ModelServer
) -> None:
    watcher = open_screen("attach")
    watcher.see(OTHER_RUNNING)
    runner.kill()
    watcher.see("The process that ran this turn is gone.")
    server.say("Still here.")
    watcher.say("are you there?")
    watcher.see("Still here.")
    assert first_lines(server)[-1] == "are you there?"


def test_into_a_pipe_it_prints_the_turn_until_that_ends(
    runner: Terminal, environment: dict[str, str], server: ModelServer, held: Held
) -> None:
    words = [*talaria("attach"), "--output-format", "stream-json"]
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as piped:
        assert piped.stdout is not None
        first = [piped.stdout.readline() for _ in range(3)]
        server.say("Waited.")
        held.let_go()
        rest = piped.stdout.read()
    assert piped.returncode == 0
    assert any("Let me **wait**." in line for line in first)
    assert '"type":"turn_done"' in rest.splitlines()[-1].replace(" ", "")
    assert "Waited." in rest.splitlines()[-1]
    runner.see("Waited.")


def test_without_a_running_conversation_it_says_so(talaria: Run) -> None:
    ran = talaria("attach")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "No conversation is running." in ran.stderr
