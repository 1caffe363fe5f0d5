"""What the tab key knows."""

from pathlib import Path

import pytest
from tests.scenarios.screen.conftest import OpenScreen, Run, said_to
from tests.scenarios.screen.emulator import DOWN, ENTER, ESCAPE, INTERRUPT, TAB

from talaria.testing.servers.model_server import ModelServer


def test_commands_are_offered_with_what_they_do(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen()
    screen.type("/st")
    screen.see("  /status   which conversation and model this is", "  /stop ", "  /steer ")
    screen.type("at")
    screen.see_gone("/stop")
    screen.type(TAB)
    screen.wait(lambda: screen.cursor[0] == len("› /status "))
    screen.type(ENTER)
    screen.see("› /status", "Session ", "model custom:test-model")


def test_one_of_several_is_chosen_with_the_arrows(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen()
    screen.type("/")
    screen.see("  /new ", "  /title ")
    screen.type(f"{DOWN}{DOWN}")
    screen.see("› /clear")
    screen.type(f"{ESCAPE}{INTERRUPT}")
    screen.see_gone("/clear")
    screen.see_typed("")


def test_conversations_are_offered_by_title(open_screen: OpenScreen, server: ModelServer, talaria: Run) -> None:
    server.say("Sunny.", "Green.")
    for question, title in (("How is the weather?", "weather report"), ("And the grass?", "on grass")):
        talaria("-q", question)
        session = talaria("sessions", "list").stdout.split()[0]
        talaria("sessions", "rename", session, title)
    screen = open_screen()
    screen.wait(lambda: "sandbox" in screen.status, "all that is known")
    screen.type("/resume gra")
    screen.see("  on grass  And the grass?")
    assert "weather" not in screen.text
    screen.type(TAB)
    screen.see("› /resume on grass")
    screen.type(ENTER)
    screen.see("on grass · 2 messages", "Green.")
    screen.wait(lambda: "on grass" in screen.status, "the title in the status")


def test_files_are_offered_behind_an_at_and_go_along_with_the_words(
    open_screen: OpenScreen, server: ModelServer, work: Path
) -> None:
    (work / "src").mkdir()
    (work / "src" / "wings.py").write_text("FEATHERS = 12\n")
    (work / "notes.md").write_text("They are small.\n")
    server.say("Twelve.")
    screen = open_screen()
    screen.type("how many in @wing")
    screen.see("  src/wings.py")
    screen.type(TAB)
    screen.see("› how many in @src/wings.py")
    screen.type(" by @not.es")
    assert "notes.md" not in screen.text
    screen.type(" and @notes.md?")
    screen.see("› how many in @src/wings.py by @not.es and @notes.md?")
    screen.type(ENTER)
    screen.see("Twelve.")
    (told,) = said_to(server.requests[0])
    assert told.startswith("how many in @src/wings.py by @not.es and @notes.md?")
    assert "[The file src/wings.py:]\nFEATHERS = 12\n" in told
    assert "[The file notes.md:]\nThey are small.\n" in told


def test_folders_that_programs_fill_are_not_offered(open_screen: OpenScreen, server: ModelServer, work: Path) -> None:
    for folder in ("src/__pycache__", "src/__main__", "src/node_modules", "src/notes"):
        (work / folder).mkdir(parents=True)
    screen = open_screen()
    screen.type("@src/")
    screen.see("  src/__main__/", "  src/notes/")
    assert "  src/__pycache__/" not in screen.lines
    assert "  src/node_modules/" not in screen.lines


def test_too_many_files_are_refused_in_a_sentence(open_screen: OpenScreen, server: ModelServer, work: Path) -> None:
    for number in range(9):
        (work / f"f{number}").write_text("x")
    screen = open_screen()
    screen.say(" ".join(f"@f{number} " for number in range(9)))
    screen.see("A message can have at most 8 files")
    assert server.requests == []


def test_model_that_its_endpoint_does_not_list_is_taken_with_a_warning(
    open_screen: OpenScreen, home: Path, environment: dict[str, str]
) -> None:
    with ModelServer(models=("one", "two")) as server:
        home.mkdir(mode=0o700)
        (home / "config.yaml").write_text(f"model: {{default: one, base_url: '{server.base_url}'}}")
        screen = open_screen(columns=120)
        screen.say("/model two")
        screen.wait(lambda: screen.status.startswith("custom:two"), "the model")
        screen.say("/model three")
        screen.see("custom:three is not in its endpoint's list of models; run `/model` to choose from that list.")
        screen.wait(lambda: screen.status.startswith("custom:three"), "the model")
        server.say("I am here.")
        screen.say("who are you")
        screen.see("I am here.")
        assert server.requests[-1].json["model"] == "three"
        assert sum("not in its endpoint's list" in line for line in screen.scrollback) == 1


def test_model_of_an_endpoint_that_lists_none_is_taken_without_a_word(
    open_screen: OpenScreen, home: Path, environment: dict[str, str]
) -> None:
    with ModelServer(models=()) as server:
        home.mkdir(mode=0o700)
        (home / "config.yaml").write_text(f"model: {{default: one, base_url: '{server.base_url}'}}")
        screen = open_screen()
        screen.say("/model other")
        server.say("I am here.")
        screen.say("who are you")
        screen.see("I am here.")
        assert not any("list of models" in line for line in screen.scrollback)


@pytest.mark.usefixtures("server")
def test_models_are_offered_once_they_are_known(open_screen: OpenScreen) -> None:
    screen = open_screen()
    screen.wait(lambda: "sandbox" in screen.status, "all that is known")
    screen.type("/model tes")

    def are_offered() -> bool:
        screen.type("\x7fs")  # what is typed is looked up again
        screen.take(0.2)
        return "  custom:test-model" in screen.lines

    screen.wait(are_offered, "the model that fits")
    screen.type(TAB)
    screen.see("› /model custom:test-model")
