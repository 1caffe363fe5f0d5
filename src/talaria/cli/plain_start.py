"""Simple command lines are read without click, so that the prompt, or the answer to a question in `-q`, appears
sooner."""

from collections.abc import Sequence
from typing import NamedTuple

from talaria.cli.options import CliOptions

_SHORT = {
    "-c": "--continue",
    "-m": "--model",
    "-r": "--resume",
    "-p": "--profile",
    **dict.fromkeys(("-q", "-z", "--print"), "--query"),
}
_FLAGS = ("--continue", "--yolo")
_VALUES = ("--model", "--resume", "--profile", "--query")


class PlainStart(NamedTuple):
    profile: str | None
    options: CliOptions
    query: str | None = None

    def run(self) -> int:
        try:
            if self.options.has_screen:
                from talaria.cli.screen.startup import run_screen  # noqa: PLC0415  (only needed with a screen)

                return run_screen(self.profile, self.options)
            from talaria.cli.notices import replace_unencodable  # noqa: PLC0415
            from talaria.cli.plain import run_without_screen  # noqa: PLC0415

            replace_unencodable()
            return run_without_screen(self.profile, self.options, self.query)
        except (Exception, KeyboardInterrupt) as fault:  # noqa: BLE001  (reported)
            from talaria.cli.command_tree import report_error  # noqa: PLC0415  (loads click)

            return report_error(fault)


def read_plain_start(arguments: Sequence[str]) -> PlainStart | None:
    """None if the arguments need click."""
    flags: set[str] = set()
    values: dict[str, str] = {}
    left = list(arguments)
    if left[:1] == ["chat"]:
        del left[0]
    while left:
        word = left.pop(0)
        name = _SHORT.get(word, word)
        if name in _FLAGS:
            flags.add(name)
        elif name in _VALUES and left and not left[0].startswith("-"):
            values[name] = left.pop(0)
        else:
            return None
    options = CliOptions(
        is_one_shot="--query" in values,
        model=values.get("--model"),
        resume=values.get("--resume"),
        is_continuing="--continue" in flags,
        yolo="--yolo" in flags,
    )
    return PlainStart(values.get("--profile"), options, values.get("--query"))
