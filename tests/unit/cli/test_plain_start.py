"""What a plain start reads without click is what click would read."""

import click
import pytest

from talaria.cli import chat_command
from talaria.cli.command_tree import add_default_command
from talaria.cli.options import CliOptions
from talaria.cli.plain_start import read_plain_start


def by_click(arguments: list[str]) -> tuple[str | None, CliOptions, str | None]:
    given = add_default_command(arguments, ())
    profile = None
    if given[0] == "-p":
        profile, given = given[1], given[2:]
    context = chat_command.command.make_context("chat", given[1:])
    found = context.params
    options = CliOptions(
        is_one_shot=found["query"] is not None,
        model=found["model"],
        resume=found["resume"],
        is_continuing=found["is_continuing"],
        yolo=found["yolo"],
    )
    return profile or found["profile"], options, found["query"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-c"],
        ["--continue", "--yolo"],
        ["-m", "openai:gpt-5"],
        ["--model", "demo", "-r", "Garden"],
        ["-p", "work", "-c"],
        ["-c", "--profile", "work", "--resume", "ab cd"],
        ["chat"],
        ["chat", "-q", "hi", "-m", "custom:test"],
        ["-q", "what is this?", "-c"],
        ["-z", "one", "--print", "two"],
    ],
)
def test_it_reads_as_click_does(arguments: list[str]) -> None:
    start = read_plain_start(arguments)
    assert start is not None
    assert start == by_click(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-q", "-"],
        ["chat", "hi"],
        ["sessions", "list"],
        ["-q"],
        ["-q", "hi", "--image", "a.png"],
        ["-h"],
        ["-m"],
        ["-m", "-c"],
        ["--model=demo"],
        ["-cq"],
        ["hello"],
    ],
)
def test_whatever_is_not_plain_is_left_to_click(arguments: list[str]) -> None:
    assert read_plain_start(arguments) is None


def test_click_knows_every_option_of_it() -> None:
    known = {name for one in chat_command.command.params if isinstance(one, click.Option) for name in one.opts}
    assert {"-c", "--continue", "--yolo", "-m", "--model", "-r", "--resume", "-p", "--profile"} <= known
    assert {"-q", "-z", "--print", "--query"} <= known
