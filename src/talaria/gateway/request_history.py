"""Programs that keep the conversation themselves send all of it with each request. Its digest, which is written in the
transaction that ends a turn, finds the conversation again.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Literal

from talaria.gateway.replies import MEDIA
from talaria.platforms.base import RequestDetails
from talaria.runtime.session_config import TurnResult
from talaria.store.api_ports import HistoryPoint

Speaker = Literal["user", "assistant"]
EMPTY = ""
"""The digest of a conversation that has not begun."""
BETWEEN = "\n\n"
"""Between two texts of one turn, as programs read them."""
FILES_PATH = "/v1/files/"
_FILE_LINE = re.compile(rf"^\s*(?:{MEDIA}.*|\[[^\]]*\]\(\S*{FILES_PATH}\S*\))\s*$", re.MULTILINE)


def extend(digest: str, speaker: Speaker, text: str) -> str:
    """With one more message. Programs may change its white space, and read links to files where the model has named
    them."""
    words = " ".join(_FILE_LINE.sub("", text).split())
    return hashlib.sha256(f"{digest}\n{speaker}\n{words}".encode("utf-8", "replace")).hexdigest()


def digest_of(history: Iterable[tuple[Speaker, str]]) -> str:
    """What one speaker says in several messages counts as one: a turn with tools has several texts."""
    digest = EMPTY
    for speaker, said in groupby(history, itemgetter(0)):
        digest = extend(digest, speaker, join_texts_of_turn(text for _, text in said))
    return digest


def join_texts_of_turn(texts: Iterable[str]) -> str:
    return BETWEEN.join(filter(None, texts))


def end_of_history(request: RequestDetails, person: str, ending: TurnResult) -> Sequence[HistoryPoint]:
    """What programs will send with the request after this one."""
    if ending.outcome != "completed" or not request.history:
        return ()
    return (HistoryPoint(person, extend(request.history, "assistant", join_texts_of_turn(ending.texts))),)
