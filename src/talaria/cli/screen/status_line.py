"""The status line, as much of it as fits."""

from typing import NamedTuple

from talaria.cli.screen.width import cut, width

_GAP = " · "
MIN_TITLE_COLUMNS, MIN_MODEL_COLUMNS = 12, 6
"""Cut shorter, they tell nothing."""


class StatusLine(NamedTuple):
    """What is known of the conversation on the screen."""

    model: str = ""
    tokens: int | None = None
    """That the conversation takes of the model's window."""
    window: int | None = None
    cost: str = ""
    title: str = ""
    session: str = ""
    """Its id, shown if it has no title."""
    sandbox: str = ""
    waiting: int = 0
    """Messages that wait for their turn."""
    background: int = 0
    """Conversations that go on beside this one."""

    def line(self, columns: int) -> str:
        """What fits. The conversation's name gives way first, then the model's name; of the rest, the level of the
        sandbox and how full the window is stay longest."""
        if not self.model:  # nothing is known yet
            return cut(_GAP.join(filter(None, self._parts().values())), columns)
        short = self.model.partition(":")[2].rpartition("/")[2] or self.model  # not who serves it, and who made it
        parts = {name: text for name, text in self._parts().items() if text}
        if name := parts.get("name"):
            least = min(width(name), MIN_TITLE_COLUMNS) if self.title else width(name)
            for model in (self.model, short) if self.title else (self.model,):
                room = columns - width(_joined(model, {**parts, "name": ""}))
                if room >= least:
                    return _joined(model, {**parts, "name": cut(name, room)})
        for dropped in ("name", "cost", "background", "waiting", "sandbox", "context"):
            parts.pop(dropped, None)
            if dropped == "waiting" and "sandbox" in parts:
                parts["sandbox"] = parts["sandbox"].partition(" (")[0]  # what the level lacks goes before the level
            room = columns - width(_joined("", parts))
            if room >= min(width(short), MIN_MODEL_COLUMNS) or not parts:
                return _joined(self.model if width(self.model) <= room else cut(short, room), parts)
        return ""

    def _context(self) -> str:
        if self.tokens is None:
            return ""
        return f"{self.tokens / self.window:.0%} context" if self.window else f"{self.tokens:,} tokens"

    def _parts(self) -> dict[str, str]:
        """All but the model, in the order in which they are shown."""
        return {
            "context": self._context(),
            "cost": self.cost,
            "name": self.title or self.session,
            "sandbox": f"sandbox {self.sandbox}" if self.sandbox else "",
            "waiting": f"{self.waiting} queued" if self.waiting else "",
            "background": f"{self.background} in the background" if self.background else "",
        }


def _joined(model: str, parts: dict[str, str]) -> str:
    return _GAP.join([model, *parts.values()])
