"""What a person should know at every start: that they run as root, and that the sandbox is weaker than it could be."""

import os
import sys

from talaria.tools.sandbox.base import Sandbox
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

ROOT = (
    "Warning: Talaria is running as root. Plugins, MCP servers and commands that you allow outside the sandbox can do "
    "anything on this machine. Run it as a normal user."
)

WITHOUT_BUBBLEWRAP = "have no network, reach no service of this machine, and cannot use multiprocessing"
"""At level landlock."""
BUBBLEWRAP = "install bubblewrap (apt install bubblewrap, dnf install bubblewrap)"


def user_warning() -> str:
    """Empty: nothing to say."""
    return ROOT if os.geteuid() == 0 else ""


def sandbox_warning(settings: TerminalSettings, sandbox: Sandbox) -> str:
    """Empty where it is the one that was asked for, or the best there is."""
    best = "seatbelt" if sys.platform == "darwin" else "strict"
    if settings.backend != "auto" or sandbox.level == best:
        return ""
    if sandbox.level == "none":
        return f"Warning: commands run without a sandbox ({sandbox.about}). You are asked about each one."
    return (
        f"Warning: commands run in a weaker sandbox, level {sandbox.level} ({sandbox.about}). They "
        f"{WITHOUT_BUBBLEWRAP}; it does not guard git hooks, .vscode and the like in the project, and /tmp is not "
        "limited."
    )
