"""The gateway as a service of systemd, of this person: the unit as text, and what `systemctl --user` does with it."""

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from talaria.core.errors import BadInput, OperatorError

SPARE_S = 15
"""More than the gateway itself takes for its end."""
_QUESTION_S = 10.0


def unit_name(home: Path) -> str:
    usual = Path("~/.talaria").expanduser()
    if home == usual:
        return "talaria-gateway.service"
    if home.parent == usual / "profiles":
        return f"talaria-gateway-{home.name}.service"
    return f"talaria-gateway-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}.service"


def unit_file(home: Path) -> Path:
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return folder / "systemd" / "user" / unit_name(home)


def unit(home: Path, command: Sequence[str], environment: Mapping[str, str], drain_s: float) -> str:
    """Only the gateway itself hears the signal to end: its turns may go on for a while."""
    words = (str(home), *command, *environment.values())
    if any(ord(sign) < 32 for word in words for sign in word):
        raise BadInput("A path with line breaks or the like in it cannot stand in a unit.")
    variables = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in environment.items())
    return f"""\
[Unit]
Description=Talaria gateway ({_specified(str(home))})
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={" ".join(_quoted(word).replace("$", "$$") for word in command)}
ExecReload=/bin/kill -HUP $MAINPID
WorkingDirectory={_specified(str(home))}
{variables}Restart=always
RestartSec=2
KillMode=mixed
TimeoutStopSec={drain_s + SPARE_S:.0f}

[Install]
WantedBy=default.target
"""


def _specified(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    escaped = _specified(word).replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def is_at_hand() -> bool:
    """Whether there is a systemd of this person to talk to."""
    try:
        return _systemctl("show-environment", timeout_s=_QUESTION_S).returncode == 0
    except OperatorError:
        return False


def is_active(home: Path) -> bool:
    """Whether it keeps the gateway of this home running."""
    if not unit_file(home).exists() or not is_at_hand():
        return False
    return _systemctl("is-active", unit_name(home), timeout_s=_QUESTION_S).returncode == 0


def order(*words: str) -> None:
    """Raises `OperatorError`."""
    ended = _systemctl(*words)
    if ended.returncode:
        raise OperatorError(f"`systemctl --user {' '.join(words)}` failed: {' '.join(ended.stderr.split())}")


def _systemctl(*words: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    command = ("systemctl", "--user", *words)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise OperatorError(f"`{' '.join(command)}` failed: {fault}.") from fault
