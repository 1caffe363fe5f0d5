"""Large pastes, folded into one word on the line and unfolded when it is sent."""

import re

MOST_LINES = 6
MOST_CHARS = 800

_WORD = re.compile(r"\[pasted #(\d+): [\d,]+ (?:lines|characters)\]")


class Pastes:
    def __init__(self) -> None:
        self._texts: list[str] = []

    def folded(self, text: str) -> str:
        """What stands for it on the line: itself, if it is short."""
        lines = len(text.splitlines())
        if lines <= MOST_LINES and len(text) <= MOST_CHARS:
            return text
        self._texts.append(text)
        size = f"{lines:,} lines" if lines > MOST_LINES else f"{len(text):,} characters"
        return f"[pasted #{len(self._texts)}: {size}]"

    def unfolded(self, line: str) -> str:
        return _WORD.sub(self._text, line)

    def _text(self, word: re.Match[str]) -> str:
        number = int(word[1])
        return self._texts[number - 1] if 0 < number <= len(self._texts) else word[0]
