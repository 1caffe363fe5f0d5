"""The status line, as much of it as fits."""

from typing import NamedTuple

from talaria.cli.screen.width import cut, width

_GAP = " · "


class Status(NamedTuple):
    """What is known of the conversation on the screen."""

    model: str = ""
    tokens: int | None = None
    """That the conversation takes of the model's window."""
    window: int | None = None
    cost: str = ""
    session: str = ""
    sandbox: str = ""
    waiting: int = 0
    """Messages that wait for their turn."""
    background: int = 0
    """Conversations that go on beside this one."""

    def line(self, columns: int) -> str:
        """The least important go first, until the rest fits."""
        facts = [fact for fact in self._facts() if fact[1]]
        while len(facts) > 1 and width(_joined(facts)) > columns:
            facts.remove(max(facts, key=lambda fact: fact[0]))
        return cut(_joined(facts), columns)

    def _context(self) -> str:
        if self.tokens is None:
            return ""
        return f"{self.tokens / self.window:.0%} context" if self.window else f"{self.tokens:,} tokens"

    def _facts(self) -> list[tuple[int, str]]:
        """With how soon each may go: the higher, the sooner."""
        return [
            (0, self.model),
            (1, self._context()),
            (3, self.cost),
            (5, self.session),
            (4, f"sandbox {self.sandbox}" if self.sandbox else ""),
            (2, f"{self.waiting} queued" if self.waiting else ""),
            (2, f"{self.background} in the background" if self.background else ""),
        ]


def _joined(facts: list[tuple[int, str]]) -> str:
    return _GAP.join(text for _, text in facts)
