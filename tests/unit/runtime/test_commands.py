"""The registry of slash commands: its laws, and what is derived from it."""

import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.core.errors import OperatorError
from talaria.runtime.builtin_commands import BUILTIN
from talaria.runtime.chat import Chat
from talaria.runtime.commands import (
    Ask,
    Command,
    Commands,
    GivenCommand,
    NameTaken,
    Outcome,
    PlainMessage,
    Say,
    Surface,
    Unclear,
    UnfitName,
    help_text,
    normalise,
    run_command,
)

SURFACES: tuple[Surface, ...] = ("terminal", "platform")


async def nothing(_: Chat, __: str) -> Outcome:
    return None


def command(
    name: str, *aliases: str, owner: str = "plugin:one", cli_only: bool = False, gateway_only: bool = False
) -> Command:
    return Command(name, f"what {name} does", "plugins", nothing, aliases, "", cli_only, gateway_only, owner=owner)


BUILTIN_WORDS = [word for one in BUILTIN for word in one.words]
SOME_WORDS = st.sampled_from(
    ["a", "ab", "a-b", "A_b", "/abc", "b c", "new", "Reset", "qui", "quit-all", *BUILTIN_WORDS]
)
OWNERS = st.sampled_from(["plugin:one", "plugin:two", "context-engine:lcm"])


def make_command(**given: Any) -> Command:
    return Command(**given)


COMMANDS = st.builds(
    make_command,
    name=SOME_WORDS,
    description=st.just("what it does"),
    category=st.just("plugins"),
    run=st.just(nothing),
    aliases=st.lists(SOME_WORDS, max_size=3).map(tuple),
    cli_only=st.booleans(),
    gateway_only=st.booleans(),
    owner=OWNERS,
)
STEPS = st.lists(COMMANDS | OWNERS, max_size=12)


def changed(steps: list[Command | str]) -> tuple[Commands, dict[str, str]]:
    """The registry after additions and removals, and which owner each word must have led to."""
    commands = Commands(BUILTIN)
    owners = dict.fromkeys(BUILTIN_WORDS, "")
    for step in steps:
        if isinstance(step, str):
            commands.remove(step)
            owners = {word: owner for word, owner in owners.items() if owner != step}
            continue
        words = {normalise(word) for word in step.words}
        if words & set(owners):
            with pytest.raises(NameTaken):
                commands.add(step)
        else:
            commands.add(step)
            owners |= dict.fromkeys(words, step.owner)
    return commands, owners


@given(st.text())
def test_normalising_twice_is_normalising_once(word: str) -> None:
    assert normalise(normalise(word)) == normalise(word)


@pytest.mark.parametrize("written", ["deep-check", "/Deep-Check", "deep_check", " /DEEP  CHECK ", "/-deep_-check-/"])
def test_all_ways_to_write_a_name_are_one_name(written: str) -> None:
    assert Commands([command(written)]).visible("terminal")[0].name == "deep-check"
    both = Commands([command("deep-check-all"), command("deep-check")])
    assert both.find(written, "terminal") == both.visible("terminal")[1]


@given(STEPS)
def test_no_two_commands_answer_to_one_word(steps: list[Command | str]) -> None:
    commands, owners = changed(steps)
    everything = {one.name: one for surface in SURFACES for one in commands.visible(surface)}
    words = [word for one in everything.values() for word in one.words]
    assert len(words) == len(set(words))
    assert set(words) <= set(owners)


@given(STEPS)
def test_a_word_leads_to_whoever_was_there_first_or_nowhere(steps: list[Command | str]) -> None:
    commands, owners = changed(steps)
    for word, owner in owners.items():
        for surface in SURFACES:
            found = commands.find(word, surface)
            if isinstance(found, Command):
                assert (word in found.words, found.owner) == (True, owner)
            else:
                assert not any(word in one.words for one in commands.visible(surface))


@given(STEPS)
def test_what_is_built_in_survives_all_that_plugins_do(steps: list[Command | str]) -> None:
    commands, _ = changed(steps)
    assert commands.visible("terminal")[: len(BUILTIN)] == BUILTIN
    for one in BUILTIN:
        assert all(commands.find(word, "terminal") == one for word in one.words)


@given(STEPS, st.text("abcnqr-_/ ", max_size=4))
def test_a_beginning_finds_a_command_only_if_no_other_fits(steps: list[Command | str], beginning: str) -> None:
    commands, _ = changed(steps)
    prefix = normalise(beginning)
    fitting = [one for one in commands.visible("terminal") if any(word.startswith(prefix) for word in one.words)]
    found = commands.find(beginning, "terminal")
    if isinstance(found, Command):
        assert prefix in found.words or fitting == [found]
    elif found.is_ambiguous:
        assert len(fitting) == len(found.candidates) > 1
        assert all(candidate.startswith(prefix) for candidate in found.candidates)
    elif prefix:
        assert not fitting or any(prefix in one.words for one in commands.visible("platform"))


def test_name_that_is_taken_is_refused_with_both_owners() -> None:
    commands = Commands([*BUILTIN, command("mine", "my")])
    with pytest.raises(NameTaken, match=r"^/reset of plugin:two cannot answer to /reset: the built-in /new does\.$"):
        commands.add(command("Reset", owner="plugin:two"))
    with pytest.raises(NameTaken, match=r"^/other of plugin:two cannot answer to /my: /mine of plugin:one does\.$"):
        commands.add(command("other", "MY", owner="plugin:two"))
    assert isinstance(commands.find("other", "terminal"), Unclear)
    assert issubclass(NameTaken, OperatorError)


def test_alias_that_repeats_the_name_is_no_clash() -> None:
    commands = Commands([command("deep-check", "deep_check", "dc", "DC")])
    assert commands.visible("terminal")[0].words == ("deep-check", "dc")


@pytest.mark.parametrize("name", ["", "/", "-", "a/b", "été", "a\nb!", "what?"])
def test_name_that_cannot_be_typed_everywhere_is_refused(name: str) -> None:
    commands = Commands()
    with pytest.raises(UnfitName):
        commands.add(command(name))
    with pytest.raises(UnfitName):
        commands.add(command("fine", name))
    assert commands.visible("terminal") == ()


def test_words_of_an_owner_are_free_again_when_it_is_removed() -> None:
    commands = Commands([*BUILTIN, command("mine", "my"), command("other", owner="plugin:two")])
    commands.remove("plugin:one")
    assert isinstance(commands.find("my", "terminal"), Unclear)
    commands.add(command("my", owner="plugin:two"))
    assert [one.name for one in commands.visible("terminal")[len(BUILTIN) :]] == ["other", "my"]
    with pytest.raises(ValueError, match="built in"):
        commands.remove("")


def test_command_of_one_surface_is_not_found_on_the_other() -> None:
    here, there = command("local", cli_only=True), command("remote", gateway_only=True)
    commands = Commands([here, there, command("remote-all"), command("local-all")])
    assert [one.name for one in commands.visible("terminal")] == ["local", "remote-all", "local-all"]
    assert [one.name for one in commands.visible("platform")] == ["remote", "remote-all", "local-all"]
    assert commands.find("local", "terminal") == here
    assert commands.find("local", "platform") == Unclear("local", ())  # and not /local-all, which begins like it
    assert commands.find("rem", "terminal") == commands.find("remote-all", "terminal")


@pytest.mark.parametrize(
    ("typed", "found"),
    [("stat", "status"), ("/COMP", "compress"), ("compa", "compress"), ("name", "title"), ("q", "quit"), ("u", None)],
)
def test_beginning_of_a_built_in_is_enough(typed: str, found: str | None) -> None:
    match Commands(BUILTIN).find(typed, "terminal"):
        case Command(name):
            assert name == found
        case Unclear(word, candidates, is_ambiguous):
            assert (found, word, candidates, is_ambiguous) == (None, "u", ("undo", "usage"), True)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/re", "/re fits more than one command: /reset, /retry, /rewind, /resume, /reasoning."),
        ("/statsu now", "There is no command /statsu; did you mean /status? /help lists them."),
        ("/nonsense", "There is no command /nonsense; /help lists them."),
        ("/", "There is no command /; /help lists them."),
        ("/ help", "There is no command /; /help lists them."),
        ("/Help!", "There is no command /Help!; did you mean /help? /help lists them."),
    ],
)
def test_word_that_nobody_answers_to_is_told_with_what_may_be_meant(line: str, sentence: str) -> None:
    assert str(Commands(BUILTIN).parse(line, "terminal")) == sentence


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("hello /help", "hello /help"),
        ("//help me", "/help me"),
        ("//", "/"),
        ("/etc/hosts is broken", "/etc/hosts is broken"),
        ("/help/", "/help/"),
    ],
)
def test_words_for_the_model_are_no_command(line: str, text: str) -> None:
    assert Commands(BUILTIN).parse(line, "terminal") == PlainMessage(text)


@pytest.mark.parametrize("line", ["/title  my  talk ", "/TITLE my  talk", "/name\tmy  talk", "/tit\nmy  talk"])
def test_argument_is_what_stands_behind_the_word(line: str) -> None:
    parsed = Commands(BUILTIN).parse(line, "terminal")
    assert isinstance(parsed, GivenCommand)
    assert (parsed.command.name, parsed.argument) == ("title", "my  talk")


@given(STEPS, st.sampled_from(["", "/", "/re", "CO", "a", "a-", "a_b", "quit"]))
def test_each_completion_goes_on_as_it_was_begun_and_is_found(steps: list[Command | str], prefix: str) -> None:
    commands, _ = changed(steps)
    offered = [word for word, _ in commands.completions(prefix)]
    begun = prefix.lower().lstrip("/").replace("_", "-")
    assert all(word.startswith(begun) for word in offered)
    found = [commands.find(word, "terminal") for word in offered]
    fitting = [one for one in commands.visible("terminal") if any(word.startswith(begun) for word in one.words)]
    assert found == fitting


def test_completions_carry_descriptions() -> None:
    assert Commands(BUILTIN).completions("/res") == [
        ("reset", "begin a new conversation"),
        ("resume", "continue another conversation, or list the latest"),
    ]


@given(STEPS, st.sampled_from([0, 3, 100]))
def test_menu_has_names_that_telegram_takes_and_the_registry_knows(steps: list[Command | str], limit: int) -> None:
    commands, _ = changed(steps)
    menu = commands.menu(limit)
    for_everybody = [one for one in commands.visible("platform") if not one.is_for_admins]
    assert len(menu) == min(limit, len(for_everybody))
    for (name, description), one in zip(menu, for_everybody, strict=False):
        assert re.fullmatch("[a-z0-9_]{1,32}", name)
        assert commands.find(name, "platform") == one
        assert description == (one.in_chats or one.description)


def test_menu_leaves_out_what_does_not_fit_and_shortens_what_is_long() -> None:
    silent = Command("silent", "", "plugins", nothing)
    wordy = Command("wordy", "so many\n words " * 100, "plugins", nothing)
    menu = Commands([command("x" * 33), command(f"{'y' * 30}-z"), silent, wordy]).menu(3)
    assert [name for name, _ in menu] == [f"{'y' * 30}_z", "silent", "wordy"]
    assert menu[1] == ("silent", "silent")
    assert len(menu[2][1]) == 256
    assert menu[2][1].startswith("so many words so many words")


def test_help_is_grouped_and_has_every_command_of_the_surface_once() -> None:
    commands = Commands([*BUILTIN, command("zoom", "z"), command("remote", gateway_only=True)])
    text = help_text(commands, "terminal")
    heads = [line for line in text.splitlines() if line.endswith(":")]
    assert heads == ["Conversation:", "Model:", "Information:", "Plugins:", "Leaving:"]
    for one in commands.visible("terminal"):
        assert len(re.findall(rf"^/{one.name}\b", text, re.MULTILINE)) == 1
    assert "Plugins:\n/zoom               what zoom does (also /z)\n" in text
    assert "/compress [about X | here N]\n                    shorten it for the model" in text
    assert text.endswith("\n\nCtrl-C stops an answer. Anything else is a message; //text sends /text as one.")
    assert "/remote" not in text


def test_help_of_a_platform_has_no_columns_and_nothing_of_the_terminal() -> None:
    text = help_text(Commands([*BUILTIN, command("remote", gateway_only=True)]), "platform")
    assert "\n/title [NAME] · give this one a name" in text
    assert "Plugins:\n/remote · what remote does\n" in text
    assert not re.search("/quit|Leaving|Ctrl-|  ", text)


@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        ("again", Ask("again")),
        (" ", Say("Undone; it had no text to ask again.")),
        (None, Say("There is nothing to undo.")),
    ],
)
async def test_retry_asks_only_what_has_words(words: str | None, outcome: Outcome) -> None:
    class LastTurn:
        async def undo(self) -> str | None:
            return words

    class ChatInUse:
        live = LastTurn()

    assert await run_command(Commands(BUILTIN).parse("/retry", "platform"), cast("Chat", ChatInUse())) == outcome
