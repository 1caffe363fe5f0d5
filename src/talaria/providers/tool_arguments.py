"""Tool arguments as every endpoint takes them: a JSON object, also when the model wrote something else."""

import msgspec


def as_object(arguments: str) -> bytes:
    """The model's own text if it is a JSON object; otherwise that text inside one, so that history stays sendable."""
    text = arguments.strip()
    try:
        if isinstance(msgspec.json.decode(text), dict):
            return text.encode()
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        pass
    return (
        msgspec.json.encode({"unparsable_arguments": arguments.encode("utf-8", "replace").decode()}) if text else b"{}"
    )
