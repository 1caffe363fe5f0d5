"""What has happened since the gateway began, in numbers."""

from collections import Counter
from typing import Literal, get_args

from talaria.core.entries import TurnOutcome

DeliveryResult = Literal["sent", "deferred", "unsure", "failed"]


class Counts:
    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        """Those that were new, by platform."""
        self.turns: Counter[str] = Counter(dict.fromkeys(get_args(TurnOutcome), 0))
        self.deliveries: Counter[str] = Counter(dict.fromkeys(get_args(DeliveryResult), 0))

    def accepted(self, platform: str, count: int) -> None:
        self.messages[platform] += count

    def turn_ended(self, outcome: TurnOutcome) -> None:
        self.turns[outcome] += 1

    def delivered(self, result: DeliveryResult) -> None:
        self.deliveries[result] += 1
