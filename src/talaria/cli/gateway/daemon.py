"""The gateway as a process of its own: started, waited for, and ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from talaria.cli.gateway import log as gateway_log
from talaria.cli.gateway import systemd
from talaria.cli.notices import say
from talaria.config import paths
from talaria.core.errors import OperatorError, TalariaError
from talaria.gateway.claims import gateway_file, holder
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.gateway.gateway_status import GatewayStatus, read_status
from talaria.settings import read_settings

START_S = 60.0
CONNECT_S = 10.0
"""How long platforms are waited for."""
LOOK_S = 0.05
PROGRESS_S = 2.0
LAST_WORDS_BYTES = 4096


def command_line(profile: str | None) -> Sequence[str]:
    chosen = () if profile is None else ("-p", profile)
    return (sys.executable, "-P", "-m", "talaria", *chosen, "gateway", "run")


def environment() -> Mapping[str, str]:
    """What must be the same wherever it is started."""
    return {"TALARIA_HOME": str(paths.home().absolute())}


def start(home: Path, profile: str | None) -> GatewayStatus:
    """Once it is up. Raises `OperatorError` with what it said if it does not come up."""
    if systemd.unit_file(home).exists() and systemd.is_at_hand():
        systemd.order("start", systemd.unit_name(home))
        return _up(home, None)
    with _output(home) as said:
        process = subprocess.Popen(  # noqa: S603
            command_line(profile),
            env={**os.environ, **environment()},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    return _up(home, process)


@contextmanager
def _output(home: Path) -> Generator[IO[bytes]]:
    """The file for what it says before its log is open. There is room for its last words, however full the disk gets.

    Raises `OperatorError`.
    """
    file = gateway_log.file(home).with_suffix(".out")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        said = file.open("wb")
    except OSError as fault:
        raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault
    with said:
        os.fchmod(said.fileno(), 0o600)
        try:
            said.write(b"\n" * LAST_WORDS_BYTES)
            said.flush()
        except OSError as fault:
            os.ftruncate(said.fileno(), 0)
            raise OperatorError(f"The gateway cannot start: {home} cannot be written to ({fault.strerror}).") from fault
        said.seek(0)
        yield said


def _up(home: Path, process: "subprocess.Popen[bytes] | None") -> GatewayStatus:
    began = time.monotonic()
    seen_at: float | None = None
    while time.monotonic() - began < START_S:
        if process is not None and process.poll() is not None:
            ended = f"The gateway ended at once (exit code {process.returncode}); see `talaria gateway logs`."
            raise OperatorError(_last_words(home) or ended)
        status = read_status(home)
        if status is not None:
            seen_at = seen_at or time.monotonic()
            is_settled = all(one.state != "connecting" for one in status.platforms)
            if is_settled or time.monotonic() - seen_at > CONNECT_S:
                return status
        time.sleep(LOOK_S)
    raise OperatorError(f"The gateway has not come up within {START_S:.0f} s; see `talaria gateway logs`.")


def _last_words(home: Path) -> str:
    output = gateway_log.file(home).with_suffix(".out")
    return output.read_text("utf-8", "replace").strip().removeprefix("talaria: ")


def stop(home: Path) -> bool:
    """Once it has ended; False: none runs. Raises `OperatorError` if it does not end."""
    pid = holder(gateway_file(home))
    if pid is None:
        return False
    if systemd.is_active(home):
        systemd.order("stop", systemd.unit_name(home))  # it would be started again
        return True
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as fault:
        raise OperatorError(f"The gateway (process {pid}) cannot be told: {fault.strerror}.") from fault
    _wait_for_end(home, pid)
    return True


def _wait_for_end(home: Path, pid: int) -> None:
    limit_s = drain_s(home) + systemd.SPARE_S
    began = told_at = time.monotonic()
    while holder(gateway_file(home)) == pid:
        now = time.monotonic()
        if now - began > limit_s:
            raise OperatorError(
                f"The gateway (process {pid}) has not ended within {limit_s:.0f} s; `kill -9 {pid}` ends it, and "
                "nothing is lost by that."
            )
        if now - told_at > PROGRESS_S:
            told_at = now
            status = read_status(home)
            say(f"{status.running if status else 'Some'} turn(s) still run.")
        time.sleep(LOOK_S)


def drain_s(home: Path) -> float:
    """Also if the settings are not right: what runs must be stopped all the same."""
    try:
        return read_settings(home).config.gateway.drain_s
    except TalariaError:
        return GatewaySettings().drain_s
