"""From settings to a running gateway: which platforms to connect, and with which settings. The HTTP API is one of
them."""

import importlib.util
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import msgspec

from talaria import __version__
from talaria.api.api_settings import ApiSettings, check_api_settings, read_api_settings
from talaria.app.build import Application, open_application, reconfigure
from talaria.app.session_files import remove_files
from talaria.app.settings import Settings
from talaria.compat.hermes.platforms.plugin_platforms import PluginPlatform
from talaria.config.secrets import find_secrets
from talaria.core.clock import Clock
from talaria.core.errors import BadConfig
from talaria.gateway.gateway_state import PlatformSpec
from talaria.gateway.gateway_status import GatewayStatus, Health
from talaria.gateway.monitor import GatewayMonitor
from talaria.gateway.service import Gateway
from talaria.platforms.base import Kit, Platform, PlatformManifest, PlatformSettings, Sender
from talaria.platforms.loader import DISTRIBUTION, is_wanted, manifests, open_platform, read_settings
from talaria.store.api_ports import API

API_MODULES = ("starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class WantedPlatforms:
    """The platforms that the settings ask for."""

    specs: tuple[PlatformSpec, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name: why a platform cannot be used."""


def load_wanted(
    settings: Settings, clock: Clock, plugins: Mapping[str, PluginPlatform] | None = None
) -> WantedPlatforms:
    """Load the code of the built-in platforms that are wanted; the code of `plugins` is already loaded."""
    given, known, theirs = settings.config.gateway.platforms, manifests(), plugins or {}
    wanted: dict[str, PlatformManifest | PluginPlatform] = {
        name: manifest for name, manifest in known.items() if is_wanted(manifest, given.get(name), settings.environment)
    }
    wanted |= {
        name: plugin
        for name, plugin in theirs.items()
        if (given[name].get("enabled", True) is not False if name in given else plugin.is_set_up)
    }
    specs: list[PlatformSpec] = []
    problems = {
        name: f"There is no platform {name}; known platforms: {', '.join((*known, *theirs))}."
        for name in given.keys() - known.keys() - theirs.keys()
    }
    for name, platform in wanted.items():
        try:
            specs.append(_load_platform(platform, given.get(name, {}), settings, clock))
        except BadConfig as fault:
            problems[name] = str(fault)
    return WantedPlatforms(tuple(specs), problems)


async def _load_wanted(app: Application) -> WantedPlatforms:
    return load_wanted(app.settings, app.clock, await app.extensions.platforms() if app.extensions else None)


def _load_platform(
    platform: PlatformManifest | PluginPlatform, raw: Mapping[str, Any], settings: Settings, clock: Clock
) -> PlatformSpec:
    """Raises `BadConfig`."""
    if isinstance(platform, PluginPlatform):
        if platform.problem:
            raise BadConfig(platform.problem)
        found = platform.settings(raw)
        connect = partial(platform.open, found)
    else:
        found = read_settings(platform, raw, settings.environment)
        connect = partial(open_platform, platform.name, found)
    settings.redactor.learn(find_secrets({}, found))
    folder = settings.home / "platforms" / platform.name

    def open_in_folder(is_allowed: Callable[[Sender], bool]) -> AbstractAsyncContextManager[Platform]:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return connect(Kit(folder, clock, is_allowed))

    return PlatformSpec(platform.name, found, open_in_folder)


class ApiPlatformSettings(PlatformSettings, frozen=True, kw_only=True):
    """The API's, as the gateway keeps the settings of a platform: if they change, it is opened again."""

    api: ApiSettings


def read_wanted_api(settings: Settings) -> ApiSettings:
    """Raises `BadConfig`."""
    found = read_api_settings(settings.config.api, settings.environment)
    check_api_settings(found)
    return found


def require_api_modules() -> None:
    """Raises `BadConfig`, which says how to install them."""
    if missing := [name for name in API_MODULES if importlib.util.find_spec(name) is None]:
        raise BadConfig(f"The HTTP API needs {', '.join(missing)}: pip install '{DISTRIBUTION}[web]'")


@dataclass
class GatewayApp:
    """A gateway whose settings can be changed while it runs."""

    app: Application
    is_api_only: bool = False
    """Only the API is served, and no chats are."""
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    metrics_port: int | None = None
    """Where the server without tokens listens, if there is one."""

    def __post_init__(self) -> None:
        self._since = self.app.clock.now()

    @cached_property
    def monitor(self) -> GatewayMonitor:
        return GatewayMonitor(self.status, self.gateway.counts, self.app.store.outbox, self.app.clock)

    async def open(self) -> None:
        specs = await self._load()
        self.gateway = Gateway(self.app, self.app.settings.config.gateway, specs)

    async def reload(self, settings: Settings) -> None:
        """Raises `BadConfig` and changes nothing if the settings cannot be used."""
        before = self.app, self.problems
        try:
            self.app = reconfigure(self.app, settings)
            await self.gateway.reload(self.app, settings.config.gateway, await self._load())
        except BaseException:
            self.app, self.problems = before
            raise

    def status(self) -> GatewayStatus:
        """At this moment."""
        gateway = self.gateway
        known = {one.name: one for one in gateway.health}
        api = gateway.state.links.find(API)
        if (url := getattr(api, "url", "")) and API in known:  # says more than the account
            known[API] = msgspec.structs.replace(known[API], account=url)
        return GatewayStatus(
            pid=os.getpid(),
            version=__version__,
            since=self._since,
            platforms=tuple(known.get(name) or Health(name) for name in gateway.platforms),
            problems=self.problems,
            store_trouble=self.app.store.trouble,
            running=gateway.running,
            live=len(gateway.pool),
            metrics_port=self.metrics_port,
            is_stopping=gateway.is_stopping,
        )

    async def _load(self) -> tuple[PlatformSpec, ...]:
        settings = self.app.settings
        found = WantedPlatforms() if self.is_api_only else await _load_wanted(self.app)
        specs, problems = found.specs, dict(found.problems)
        try:
            api = read_wanted_api(settings)
            if api.enabled or self.is_api_only:
                require_api_modules()
                specs = (*specs, self._api_spec(api))
        except BadConfig as fault:
            problems[API] = str(fault)
        self.problems = problems
        return specs

    def _api_spec(self, api: ApiSettings) -> PlatformSpec:
        home, clock = self.app.home, self.app.clock

        def open_here(is_allowed: Callable[[Sender], bool]) -> AbstractAsyncContextManager[Platform]:
            from talaria.api.api_platform import open_api  # noqa: PLC0415  (loads a web server)

            folder = home / "platforms" / API
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            kit = Kit(folder, clock, is_allowed)
            return open_api(api, kit, self.gateway, self.monitor, partial(remove_files, home))

        return PlatformSpec(API, ApiPlatformSettings(api=api), open_here)


@asynccontextmanager
async def open_gateway_app(
    settings: Settings, *, is_api_only: bool = False, **options: Any
) -> AsyncGenerator[GatewayApp]:
    async with open_application(settings, kind="gateway", **options) as app:
        gateway_app = GatewayApp(app, is_api_only)
        await gateway_app.open()
        yield gateway_app
