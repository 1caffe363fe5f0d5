"""`talaria-plain`: the model alone, without tools, memory or a conversation, for the titles and tags that front ends
ask for. Nothing is kept but its cost."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from talaria.agent.budget import Cap, tighter
from talaria.api.api_errors import wrong_field
from talaria.api.api_server import ApiCall
from talaria.core.ids import SessionId
from talaria.core.messages import NO_USAGE, Assistant, Message, Text, Usage, user

PURPOSE: Literal["title"] = "title"
ACCOUNT = SessionId("api-plain")
MAX_OUTPUT = 8_192
DEFAULT_SYSTEM = "Answer shortly and to the point."


async def answer_plainly(call: ApiCall, messages: Sequence[tuple[str, str]]) -> tuple[str, Usage]:
    """`messages`: roles and texts. Raises what the model call raises."""
    system = "\n\n".join(text for role, text in messages if role in ("system", "developer") and text)
    said: list[Message] = []
    for role, text in messages:
        if role == "user":
            said.append(user(text))
        elif role == "assistant" and text:
            said.append(Assistant((Text(text),)))
    if not said or isinstance(said[-1], Assistant):
        raise wrong_field("The last message must be the user's.", "messages")
    auxiliary = call.requests.gateway.state.host.auxiliary(PURPOSE)
    caps = Cap(call.token.tokens_per_day, call.token.usd_per_day)
    limits = msgspec.structs.replace(auxiliary.limits, person=tighter(auxiliary.limits.person, caps))
    auxiliary = msgspec.structs.replace(auxiliary, limits=limits)
    answer = await auxiliary.ask(
        said, system=system or DEFAULT_SYSTEM, session=ACCOUNT, person=call.token.person, max_output=MAX_OUTPUT
    )
    return answer.text, answer.usage or NO_USAGE
