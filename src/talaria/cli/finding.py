"""What `talaria doctor` found out about one thing."""

from typing import Literal

import msgspec

Verdict = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    subject: str
    verdict: Verdict
    text: str
