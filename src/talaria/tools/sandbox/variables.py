"""Which of the person's environment variables commands may get: what `terminal.env` lists, but no secrets, and nothing
that decides which code runs or where the network leads."""

import re
from collections.abc import Mapping, Sequence

from talaria.core.errors import ToolFailed
from talaria.core.secret import says_secret, words_of

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ACCOUNTS = ("AWS_", "AZURE_", "GCP_", "GOOGLE_", "GH_", "GITHUB_", "GITLAB_", "OPENAI_", "ANTHROPIC_", "TALARIA_")
"""Of services: what their programs read is mostly there to log in."""
_LOADED = (
    *("LD_", "DYLD_", "BASH_", "GIT_", "SSH_", "GPG_", "DBUS_", "MALLOC_", "GLIBC_", "SYSTEMD_", "SUDO_", "DOCKER_"),
    *("PS0", "PS1", "PS2", "PS3", "PS4", "NODE_OPTIONS", "NODE_TLS", "PERL5", "RUBYOPT", "RUBYLIB"),
)
_CONTROLLING = frozenset(
    {
        *("BASHOPTS", "SHELLOPTS", "ENV", "IFS", "CDPATH", "FPATH", "ZDOTDIR", "PROMPT_COMMAND", "EXECIGNORE"),
        *("PATH", "HOME", "SHELL", "USER", "LOGNAME", "PWD", "OLDPWD", "TMPDIR", "TMP", "TEMP", "XDG_RUNTIME_DIR"),
        *("PYTHONSTARTUP", "PYTHONHOME", "PYTHONBREAKPOINT", "PYTHONINSPECT", "PYTHONUSERBASE", "NODE_USE_ENV_PROXY"),
        *("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "GCONV_PATH", "LOCPATH", "NLSPATH", "TERMINFO"),
        *("HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"),
    }
)
_LOGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@]+@")


def check_names(names: Sequence[str]) -> None:
    """Raises `ValueError` for the first that commands never get."""
    for name in names:
        if (reason := refusal(name)) is not None:
            raise ValueError(f"terminal.env lists {name[:80]!r}, which {reason}; take it off the list")


def refusal(name: str) -> str | None:
    """Why commands never get a variable; None: they may."""
    upper = name.upper()
    if not _NAME.fullmatch(name):
        return "is not the name of one variable"
    if says_secret(words_of(name)) or upper.startswith(_ACCOUNTS) or "SECRET" in upper or "PASSW" in upper:
        return "is named like a secret, and commands get none"
    if upper in _CONTROLLING or upper.startswith(_LOADED):
        return "decides what programs run or load, and is not passed to commands"
    if upper.endswith("_PROXY"):
        return "leads to a proxy, and commands have one of their own"
    return None


def listed_variables(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Those that are set. Raises `ToolFailed` for a value that has a user name or a password in an address."""
    found = {name: environment[name] for name in names if name in environment}
    for name, value in found.items():
        if _LOGIN.search(value):
            raise ToolFailed(
                f"Commands do not run: terminal.env lists {name}, whose value has a login in its address "
                f"(scheme://user:password@host), and commands get no secrets. Take the login out of the value, or "
                f"{name} off the list."
            )
    return found
