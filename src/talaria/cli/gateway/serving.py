"""`talaria gateway run` and `talaria api`: the gateway in this process, until a signal stops it."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
from talaria.gateway.gateway_status import keep_status
from talaria.store.api_ports import API

NO_PLATFORM = (
    "No platform is set up, so there is nobody to listen to. `talaria gateway platforms` lists what each one needs; "
    "for Telegram: `talaria config set TELEGRAM_BOT_TOKEN …` and `talaria config set TELEGRAM_ALLOWED_USERS …`. "
    "`talaria api` serves programs and front ends instead."
)

API_LOOK_S = 0.05

log = logging.getLogger(__name__)


class UnixSignals:
    """TERM and INT: stop; the second time at once. HUP: read the settings again."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.reload = asyncio.Event()

    def catch(self) -> None:
        has_terminal = sys.stderr.isatty()

        def stop(number: signal.Signals) -> None:
            if self.stop.is_set():
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            self.stop.set()
            if has_terminal:
                say("Stopping when the running turns have ended; press Ctrl-C again to stop at once.")

        def hang_up() -> None:
            is_gone = has_terminal and not sys.stderr.isatty()  # its window was closed
            (self.stop if is_gone else self.reload).set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        loop.add_signal_handler(signal.SIGHUP, hang_up)


async def serve(home: Path, *, is_api_only: bool = False) -> None:
    signals = UnixSignals()
    signals.catch()  # before anything else: whoever sees the lock may send one
    pid = find_holder(gateway_file(home))
    way = (
        "`talaria config set api.enabled true` has it serve the API, if it does not yet"
        if is_api_only
        else "`talaria gateway stop` stops it"
    )
    with claim(
        gateway_file(home), f"A gateway is already running on {home}{f' (process {pid})' if pid else ''}; {way}."
    ):
        process = dict(os.environ)  # plugins add to it
        settings = read_settings(home)
        gateway_log.set_up(home, settings.redactor, is_shown=sys.stderr.isatty())
        async with open_gateway_app(settings, is_api_only=is_api_only) as gateway_app:
            if is_api_only and API in gateway_app.problems:
                raise BadConfig(gateway_app.problems[API])
            for name, problem in gateway_app.problems.items():
                log.error("%s is left out: %s", name, problem)
                complain(f"{name} is left out: {problem}")
            if not gateway_app.gateway.platforms:
                raise BadConfig("No platform can be used." if gateway_app.problems else NO_PLATFORM)
            warnings = [context.user_warning()]
            if (builtin := gateway_app.app.builtin) is not None:
                sandbox = await in_thread(lambda: builtin.workspaces.sandbox)
                warnings.append(context.sandbox_warning(settings.config.terminal, sandbox))
            for warning in filter(None, warnings):
                log.warning("%s", warning.removeprefix("Warning: "))
                complain(warning)
            await _run(gateway_app, home, signals, process)


async def _run(gateway_app: GatewayApp, home: Path, signals: UnixSignals, process: Mapping[str, str]) -> None:
    clock, gateway = gateway_app.app.clock, gateway_app.gateway
    failures: list[str] = []

    async def report_api() -> None:
        if not (failure := await _wait_for_api(gateway_app)):
            return
        complain(f"api: {failure}")
        if gateway_app.is_api_only:  # there is nothing else to run for
            failures.append(failure)
            gateway.stop()

    async def stop_on_signal() -> None:
        await signals.stop.wait()
        log.info("gateway is being stopped; %d turns running", gateway.running)
        gateway.stop()

    work = [
        stop_on_signal(),
        _reload_on_signal(gateway_app, home, signals, process),
        keep_status(home, gateway_app.status, clock),
        gateway_app.monitor.run(),
    ]
    if API in gateway.platforms:
        work.append(report_api())
    if (port := gateway_app.app.settings.config.gateway.metrics_port) is not None:
        work.append(_serve_metrics(gateway_app, port))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        log.info("gateway %s runs with %s", __version__, ", ".join(gateway.platforms))
        say(f"The gateway is running with {', '.join(gateway.platforms)} (process {os.getpid()}).")
        await gateway.run()
        log.info("gateway has ended")
        for task in tasks:
            task.cancel()
    if failures:
        raise OperatorError(failures[0])


async def _wait_for_api(gateway_app: GatewayApp) -> str:
    """Says where it is, once it listens. Returns why it cannot."""
    gateway = gateway_app.gateway
    while gateway.state.links.find(API) is None:
        if error := next((one.error for one in gateway.health if one.name == API), ""):
            return error
        await gateway_app.app.clock.sleep(API_LOOK_S)
    address = next(one.account for one in gateway_app.status().platforms if one.name == API)
    say(f"Programs reach the API at {address}.")
    if not await gateway_app.app.store.api_tokens.list():
        say("They need a token: `talaria api token create NAME` makes one.")
    return ""


async def _serve_metrics(gateway_app: GatewayApp, port: int) -> None:
    from talaria.gateway import metrics  # noqa: PLC0415  (loads a web server)

    server = metrics.MetricsServer(gateway_app.monitor)

    def note_port(port: int) -> None:
        gateway_app.metrics_port = port

    try:
        await server.serve(port, note_port)
    except OperatorError as fault:  # better a gateway without metrics than none
        log.error("no metrics: %s", fault)  # noqa: TRY400  (it says what is wrong)


async def _reload_on_signal(
    gateway_app: GatewayApp, home: Path, signals: UnixSignals, process: Mapping[str, str]
) -> None:
    while True:
        await signals.reload.wait()
        signals.reload.clear()
        try:
            settings = await in_thread(lambda: read_settings(home, process))
            redactor = gateway_app.app.settings.redactor  # the log and everything that runs share this one
            redactor.learn(find_secrets(settings.environment, settings.config))
            await gateway_app.reload(replace(settings, redactor=redactor))
            for name, problem in gateway_app.problems.items():
                log.error("%s is left out: %s", name, problem)
        except TalariaError as fault:
            log.error("the settings stay as they were: %s", fault)  # noqa: TRY400  (it says what is wrong)
        except Exception:  # what is running continues
            log.exception("the new settings could not be applied")
        else:
            log.info("new settings are in use, with %s", ", ".join(gateway_app.gateway.platforms) or "no platform")
