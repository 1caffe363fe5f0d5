"""What happened beside the calls of a session: dialogs, tabs, downloads, hosts that were refused."""

NO_PAGE = "No page is open; open one with browser_navigate."
MAX_NOTES = 10
MAX_CHARS = 300


class Notes:
    def __init__(self) -> None:
        self._notes: list[str] = []
        self.refused: list[str] = []
        """Hosts, since the last `take`."""

    def add(self, text: str) -> None:
        self._notes.append(f"[{' '.join(text.split())[:MAX_CHARS]}]")

    def refuse(self, host: str, port: int, _: str) -> None:
        self.refused.append(host)
        self.add(f"network: {host}:{port} was refused")

    def take(self) -> list[str]:
        """Each one once; they are told only once, too."""
        notes = list(dict.fromkeys(self._notes))
        self._notes.clear()
        self.refused.clear()
        more = len(notes) - MAX_NOTES
        return [*notes[:MAX_NOTES], f"[and {more:,} more of this kind]"] if more > 0 else notes
