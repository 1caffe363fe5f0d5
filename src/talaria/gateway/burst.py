"""When a message is likely to go on, and which messages are one. Pure."""

from collections.abc import Sequence

from talaria.gateway.envelope import Received
from talaria.store.mail import Inbound

QUIET_S = 0.05
"""What was sent together arrives together."""
CONTINUED_S = 0.6
"""For what a client has split, or the next picture of an album."""

Mail = tuple[Inbound, Received]


def quiet_s(mail: Sequence[Mail]) -> float:
    """How long it must have been quiet before these are taken for all."""
    return CONTINUED_S if any(received.arrival.is_continued for _, received in mail) else QUIET_S


def together(mail: Sequence[Mail], is_command: Sequence[bool]) -> Sequence[Mail]:
    """The first messages that one person has said in one place, up to a command or somebody else."""
    joined: list[Mail] = []
    for one, is_other in zip(mail, is_command, strict=True):
        first = joined[0][1] if joined else one[1]
        is_same = one[1].principal == first.principal and one[1].arrival.where == first.arrival.where
        if is_other or not is_same:
            break
        joined.append(one)
    return joined
