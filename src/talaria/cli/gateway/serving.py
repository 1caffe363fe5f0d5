"""`talaria gateway run`: the gateway in this process, until a signal ends it."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from talaria import __version__
from talaria.app.gateway_app import GatewayApp, open_gateway_app
from talaria.app.settings import read_settings
from talaria.cli import context
from talaria.cli.gateway import log as gateway_log
from talaria.cli.notices import complain, say
from talaria.config.secrets import find_secrets
from talaria.core.aio import in_thread
from talaria.core.errors import BadConfig, OperatorError, TalariaError
from talaria.gateway.claims import claim, find_holder, gateway_file
from talaria.gateway.gateway_status import GatewayStatus, Health, keep_status

if TYPE_CHECKING:
    from talaria.gateway.metrics import MetricsServer

NO_PLATFORM = (
    "No platform is set up, so there is nobody to listen to. `talaria gateway platforms` says what each one needs; "
    "for Telegram: `talaria config set TELEGRAM_BOT_TOKEN …` and `talaria config set TELEGRAM_ALLOWED_USERS …`."
)

log = logging.getLogger(__name__)


class Signals:
    """TERM and INT: stop, and the second time at once. HUP: read the settings again."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.reload = asyncio.Event()
        self._has_terminal = sys.stderr.isatty()

    def catch(self) -> None:
        """First of all: whoever sees that we run may send them."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _stop(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.stop.set()
        if self._has_terminal:
            say("Stopping when the turns that run have ended; once more ends it at once.")

    def _hang_up(self) -> None:
        is_gone = self._has_terminal and not sys.stderr.isatty()  # its window was closed
        (self.stop if is_gone else self.reload).set()


async def serve(home: Path) -> None:
    signals = Signals()
    signals.catch()
    pid = find_holder(gateway_file(home))
    sentence = f"A gateway runs on {home} already{f' (process {pid})' if pid else ''}; `talaria gateway stop` ends it."
    with claim(gateway_file(home), sentence):
        process = dict(os.environ)  # plugins add to it
        settings = read_settings(home)
        gateway_log.keep(home, settings.redactor, is_shown=sys.stderr.isatty())
        async with open_gateway_app(settings) as board:
            _check(board)
            await _mention_risks(board)
            await _run(board, home, signals, process)


def _check(board: GatewayApp) -> None:
    for name, problem in board.problems.items():
        log.error("%s is left out: %s", name, problem)
        complain(f"{name} is left out: {problem}")
    if not board.gateway.platforms:
        raise BadConfig("No platform can be used." if board.problems else NO_PLATFORM)


async def _mention_risks(board: GatewayApp) -> None:
    sentences = [context.user_warning()]
    if (builtin := board.app.builtin) is not None:
        sandbox = await in_thread(lambda: builtin.workspaces.sandbox)
        sentences.append(context.sandbox_warning(board.app.settings.config.terminal, sandbox))
    for sentence in filter(None, sentences):
        log.warning("%s", sentence.removeprefix("Warning: "))
        complain(sentence)


async def _run(board: GatewayApp, home: Path, signals: Signals, process: Mapping[str, str]) -> None:
    clock, gateway, since = board.app.clock, board.gateway, board.app.clock.now()
    numbers: MetricsServer | None = None

    def look() -> GatewayStatus:
        known = {one.name: one for one in gateway.health}
        return GatewayStatus(
            pid=os.getpid(),
            version=__version__,
            since=since,
            platforms=tuple(known.get(name) or Health(name) for name in gateway.platforms),
            problems=board.problems,
            store_trouble=board.app.store.trouble,
            running=gateway.running,
            live=len(gateway.pool),
            metrics_port=numbers.port if numbers else None,
            is_stopping=signals.stop.is_set(),
        )

    beside = [
        _stop_on_signal(board, signals),
        _reload_on_signal(board, home, signals, process),
        keep_status(home, look, clock),
    ]
    port = board.app.settings.config.gateway.metrics_port
    if port is not None:
        from talaria.gateway import metrics  # noqa: PLC0415  (loads a web server)

        numbers = metrics.MetricsServer(look, gateway.counts, board.app.store.outbox, clock)
        beside.append(_serve_metrics(numbers, port))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in beside]
        log.info("gateway %s runs with %s", __version__, ", ".join(gateway.platforms))
        say(f"The gateway runs with {', '.join(gateway.platforms)} (process {os.getpid()}).")
        await gateway.run()
        log.info("gateway has ended")
        for task in tasks:
            task.cancel()


async def _serve_metrics(numbers: "MetricsServer", port: int) -> None:
    """A gateway that cannot be watched is better than none."""
    try:
        await numbers.serve(port)
    except OperatorError as fault:
        log.error("no numbers: %s", fault)  # noqa: TRY400  (it says what is wrong)


async def _stop_on_signal(board: GatewayApp, signals: Signals) -> None:
    await signals.stop.wait()
    log.info("gateway is being stopped; %d turns run", board.gateway.running)
    board.gateway.stop()


async def _reload_on_signal(board: GatewayApp, home: Path, signals: Signals, process: Mapping[str, str]) -> None:
    while True:
        await signals.reload.wait()
        signals.reload.clear()
        try:
            await _reload(board, home, process)
        except TalariaError as fault:
            log.error("the settings stay as they were: %s", fault)  # noqa: TRY400  (it says what is wrong)
        except Exception:  # what runs goes on
            log.exception("the settings could not be taken up")
        else:
            log.info("new settings are in use, with %s", ", ".join(board.gateway.platforms) or "no platform")


async def _reload(board: GatewayApp, home: Path, process: Mapping[str, str]) -> None:
    settings = await in_thread(lambda: read_settings(home, process))
    redactor = board.app.settings.redactor  # the log has it, and so does whatever runs
    redactor.learn(find_secrets(settings.environment, settings.config))
    await board.reload(replace(settings, redactor=redactor))
    for name, problem in board.problems.items():
        log.error("%s is left out: %s", name, problem)
