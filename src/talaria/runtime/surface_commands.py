"""The slash commands that only one surface has, as data. A surface makes its commands from these and adds the code.

They are declared here because their words are reserved before plugins register, on every surface: a plugin must not
have a command in the terminal whose word means something else in a chat.
"""

from talaria.runtime.commands import CommandSpec

GATEWAY_COMMANDS = (
    CommandSpec("start", "what this is", gateway_only=True),
    CommandSpec("stop", "end the turn that runs; what waits is dropped", gateway_only=True),
    CommandSpec("queue", "say something when this turn has ended", ("q",), "TEXT", gateway_only=True),
    CommandSpec("steer", "tell the model something while it works", ("tell",), "TEXT", gateway_only=True),
    CommandSpec("busy", "what a message does while a turn runs", (), "queue|steer|interrupt", gateway_only=True),
    CommandSpec("approve", "allow what is asked", (), "[once|session|project|always]", gateway_only=True),
    CommandSpec("deny", "do not allow it, and say what to do instead", args_hint="[WORDS]", gateway_only=True),
    CommandSpec(
        "sethome", "send here what nobody has asked for", category="info", gateway_only=True, is_for_admins=True
    ),
    CommandSpec("whoami", "who you are here", category="info", gateway_only=True),
)
SCREEN_COMMANDS = (
    CommandSpec("stop", "end the turn that runs; what waits is dropped", cli_only=True),
    CommandSpec("queue", "say something when this turn has ended", ("q",), "TEXT", cli_only=True),
    CommandSpec("steer", "tell the model something while it works", ("tell",), "TEXT", cli_only=True),
    CommandSpec(
        "background", "ask beside this conversation; the answer comes here", ("bg", "btw"), "TEXT", cli_only=True
    ),
    CommandSpec(
        "export",
        "write this conversation to a file: a page (.html), .md or .jsonl",
        ("save",),
        "[FILE]",
        cli_only=True,
    ),
    CommandSpec("details", "what the last turn has thought and done, in full (Ctrl-O)", ("verbose",), cli_only=True),
    CommandSpec("approve", "allow what is asked: by the keys of the question", cli_only=True),
    CommandSpec("deny", "do not allow it: likewise", cli_only=True),
    CommandSpec("sethome", "say this in the chat that should be home", cli_only=True),
)
