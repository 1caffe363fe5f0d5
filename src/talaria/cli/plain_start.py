"""A plain `talaria`, read without click: the line to type on is there sooner. Whatever is not plain is click's."""

from collections.abc import Sequence
from typing import NamedTuple

from talaria.cli.options import CliOptions

_SHORT = {"-c": "--continue", "-m": "--model", "-r": "--resume", "-p": "--profile"}
_FLAGS = ("--continue", "--yolo")
_VALUES = ("--model", "--resume", "--profile")


class PlainStart(NamedTuple):
    profile: str | None
    options: CliOptions

    def run(self) -> int:
        from talaria.cli.screen.startup import run_screen  # noqa: PLC0415  (who has no screen does not wait for it)

        try:
            return run_screen(self.profile, self.options)
        except (Exception, KeyboardInterrupt) as fault:  # noqa: BLE001  (told)
            from talaria.cli.error_messages import report_error  # noqa: PLC0415

            return report_error(fault)


def read_plain_start(arguments: Sequence[str]) -> PlainStart | None:
    """None: it is not plain."""
    flags: set[str] = set()
    values: dict[str, str] = {}
    left = list(arguments)
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
        model=values.get("--model"),
        resume=values.get("--resume"),
        is_continuing="--continue" in flags,
        yolo="--yolo" in flags,
    )
    return PlainStart(values.get("--profile"), options)
