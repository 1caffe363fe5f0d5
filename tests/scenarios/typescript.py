"""A command at a real terminal that only ever writes on: what it has written is read like a text."""

import sys
from collections.abc import Sequence

from tests.scenarios.screen import emulator


class Terminal(emulator.Terminal):
    def __init__(
        self,
        environment: dict[str, str],
        *arguments: str,
        program: Sequence[str] = (sys.executable, "-m", "talaria.cli.main"),
    ) -> None:
        super().__init__([*program, *arguments], environment)
        self._seen_chars = 0

    @property
    def screen(self) -> str:
        """All of it."""
        return self.raw.decode("utf-8", "replace")

    def see(self, *texts: str) -> str:
        """Reads on until these have come, one after the other; what was read."""
        start = self._seen_chars
        for text in texts:
            self.wait(lambda text=text: text in self.screen[self._seen_chars :], text)
            self._seen_chars = self.screen.index(text, self._seen_chars) + len(text)
        return self.screen[start : self._seen_chars]

    def answer(self, question: str, keys: str) -> None:
        self.see(question)
        self.type(keys)

    def close(self) -> None:
        self.__exit__(None, None, None)
