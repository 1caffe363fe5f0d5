"""What the model is told about a tool."""

import msgspec


class ToolSpec(msgspec.Struct, frozen=True):
    name: str
    description: str
    parameters: msgspec.Raw
    """A JSON schema of type object, kept as bytes."""
