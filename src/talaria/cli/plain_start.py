"""A plain `talaria`, read without click: the line to type on is there sooner. Whatever is not plain is click's."""

from collections.abc import Sequence

import msgspec

from talaria.cli.options import Options

_FLAGS = {"-c": "is_continuing", "--continue": "is_continuing", "--yolo": "yolo"}
_VALUES = {"-m": "model", "--model": "model", "-r": "resume", "--resume": "resume"}


class PlainStart(msgspec.Struct, frozen=True):
    profile: str | None
    options: Options

    def run(self) -> int:
        from talaria.cli.screen.opening import run_screen  # noqa: PLC0415  (who has no screen does not wait for it)

        try:
            return run_screen(self.profile, self.options)
        except (Exception, KeyboardInterrupt) as fault:  # noqa: BLE001  (told)
            from talaria.cli.border import told  # noqa: PLC0415

            return told(fault)


def read(arguments: Sequence[str]) -> PlainStart | None:
    """None: it is not plain."""
    given: dict[str, str | bool] = {}
    profile: str | None = None
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word in _FLAGS:
            given[_FLAGS[word]] = True
        elif (word in _VALUES or word in ("-p", "--profile")) and left and not left[0].startswith("-"):
            value = left.pop(0)
            if word in _VALUES:
                given[_VALUES[word]] = value
            else:
                profile = value
        else:
            return None
    return PlainStart(profile, msgspec.convert(given, Options))
