"""The gateway as a process of its own, started, waited for and stopped; or as a systemd service of the user.

The unit is made as text; `systemctl --user` does the rest.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from talaria.app.settings import read_settings
from talaria.cli.gateway import log as gateway_log
from talaria.cli.notices import say
from talaria.config import paths
from talaria.core.errors import BadInput, OperatorError, TalariaError
from talaria.gateway.claims import find_holder, gateway_file
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.gateway.gateway_status import GatewayStatus, read_status

SPARE_S = 15
"""More than the gateway itself needs to stop."""
START_S = 60.0
CONNECT_S = 10.0
"""How long to wait for platforms to connect."""
LOOK_S = 0.05
PROGRESS_S = 2.0
LAST_WORDS_BYTES = 4096
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
    """Only the gateway itself gets the signal to stop: its turns may continue for a while."""
    words = (str(home), *command, *environment.values())
    if any(ord(char) < 32 for word in words for char in word):
        raise BadInput("A path with control characters, such as line breaks, cannot be written to a systemd unit.")
    variables = "".join(f"Environment={_quote(f'{name}={value}')}\n" for name, value in environment.items())
    return f"""\
[Unit]
Description=Talaria gateway ({_escape_percent(str(home))})
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={" ".join(_quote(word).replace("$", "$$") for word in command)}
ExecReload=/bin/kill -HUP $MAINPID
WorkingDirectory={_escape_percent(str(home))}
{variables}Restart=always
RestartSec=2
KillMode=mixed
TimeoutStopSec={drain_s + SPARE_S:.0f}

[Install]
WantedBy=default.target
"""


def _escape_percent(text: str) -> str:
    return text.replace("%", "%%")


def _quote(word: str) -> str:
    escaped = _escape_percent(word).replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def has_systemd() -> bool:
    """Whether `systemctl --user` works here."""
    try:
        return _run_systemctl("show-environment", timeout_s=_QUESTION_S).returncode == 0
    except OperatorError:
        return False


def systemctl(*words: str) -> None:
    ended = _run_systemctl(*words)
    if ended.returncode:
        raise OperatorError(f"`systemctl --user {' '.join(words)}` failed: {' '.join(ended.stderr.split())}")


def _run_systemctl(*words: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    command = ("systemctl", "--user", *words)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise OperatorError(f"`{' '.join(command)}` failed: {fault}.") from fault


def command_line(profile: str | None) -> Sequence[str]:
    chosen = () if profile is None else ("-p", profile)
    return (sys.executable, "-P", "-m", "talaria", *chosen, "gateway", "run")


def environment() -> Mapping[str, str]:
    """Variables that must be the same however it is started."""
    return {"TALARIA_HOME": str(paths.home().absolute())}


def start(home: Path, profile: str | None) -> GatewayStatus:
    """Returns once it is up. Raises `OperatorError` with what it printed if it does not come up."""
    if unit_file(home).exists() and has_systemd():
        systemctl("start", unit_name(home))
        return _wait_until_up(home, None)
    file = gateway_log.file(home).with_suffix(".out")  # for what it prints before its log is open
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        output = file.open("wb")
    except OSError as fault:
        raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault
    with output:
        os.fchmod(output.fileno(), 0o600)
        try:
            output.write(b"\n" * LAST_WORDS_BYTES)  # reserves space for its last words, however full the disk gets
            output.flush()
        except OSError as fault:
            os.ftruncate(output.fileno(), 0)
            raise OperatorError(f"The gateway cannot start: {home} cannot be written to ({fault.strerror}).") from fault
        output.seek(0)
        process = subprocess.Popen(  # noqa: S603
            command_line(profile),
            env={**os.environ, **environment()},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return _wait_until_up(home, process)


def _wait_until_up(home: Path, process: "subprocess.Popen[bytes] | None") -> GatewayStatus:
    began = time.monotonic()
    seen_at: float | None = None
    while time.monotonic() - began < START_S:
        if process is not None and process.poll() is not None:
            printed = gateway_log.file(home).with_suffix(".out").read_text("utf-8", "replace").strip()
            ended = f"The gateway ended at once (exit code {process.returncode}); see `talaria gateway logs`."
            raise OperatorError(printed.removeprefix("talaria: ") or ended)
        status = read_status(home)
        if status is not None:
            seen_at = seen_at or time.monotonic()
            is_settled = all(one.state != "connecting" for one in status.platforms)
            if is_settled or time.monotonic() - seen_at > CONNECT_S:
                return status
        time.sleep(LOOK_S)
    raise OperatorError(f"The gateway did not come up within {START_S:.0f} s; see `talaria gateway logs`.")


def stop(home: Path) -> bool:
    """Returns once it has ended; False: none was running. Raises `OperatorError` if it does not end."""
    pid = find_holder(gateway_file(home))
    if pid is None:
        return False
    name, has_unit = unit_name(home), unit_file(home).exists() and has_systemd()
    if has_unit and _run_systemctl("is-active", name, timeout_s=_QUESTION_S).returncode == 0:
        systemctl("stop", name)  # after a mere signal systemd would start it again
        return True
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as fault:
        raise OperatorError(f"Cannot stop the gateway (process {pid}): {fault.strerror}.") from fault
    limit_s = drain_s(home) + SPARE_S
    began = reported_at = time.monotonic()
    while find_holder(gateway_file(home)) == pid:
        now = time.monotonic()
        if now - began > limit_s:
            raise OperatorError(
                f"The gateway (process {pid}) did not end within {limit_s:.0f} s; `kill -9 {pid}` ends it, and nothing "
                "is lost by that."
            )
        if now - reported_at > PROGRESS_S:
            reported_at = now
            status = read_status(home)
            say(f"{status.running if status else 'Some'} turn(s) still running.")
        time.sleep(LOOK_S)
    return True


def drain_s(home: Path) -> float:
    """The default if the settings are wrong: a gateway must still be stopped then."""
    try:
        return read_settings(home).config.gateway.drain_s
    except TalariaError:
        return GatewaySettings().drain_s
