"""Which wire a name stands for."""

from typing import assert_never

from talaria.providers.anthropic_messages import AnthropicMessages
from talaria.providers.base import Wire, WireName
from talaria.providers.openai_chat import OpenAIChat
from talaria.providers.openai_responses import OpenAIResponses


def wire_for(name: WireName) -> Wire:
    match name:
        case "openai_chat":
            return OpenAIChat()
        case "openai_responses":
            return OpenAIResponses()
        case "anthropic_messages":
            return AnthropicMessages()
        case _:
            assert_never(name)
