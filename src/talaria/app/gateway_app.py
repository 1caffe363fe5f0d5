"""From settings to a running gateway: which platforms to connect, and with which settings."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from talaria.app.build import Application, open_application, reconfigure
from talaria.app.settings import Settings
from talaria.compat.hermes.platforms.plugin_platforms import PluginPlatform
from talaria.config.secrets import find_secrets
from talaria.core.clock import Clock
from talaria.core.errors import BadConfig
from talaria.gateway.gateway_state import PlatformSpec
from talaria.gateway.service import Gateway
from talaria.platforms.base import Kit, Platform, PlatformManifest, Sender
from talaria.platforms.loader import is_wanted, manifests, open_platform, read_settings


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


@dataclass(slots=True)
class GatewayApp:
    """A gateway whose settings can be changed while it runs."""

    app: Application
    gateway: Gateway
    problems: Mapping[str, str]

    async def reload(self, settings: Settings) -> None:
        """Raises `BadConfig` and changes nothing if the settings cannot be used."""
        app = reconfigure(self.app, settings)
        found = await _load_wanted(app)
        await self.gateway.reload(app, settings.config.gateway, found.specs)
        self.app, self.problems = app, found.problems


@asynccontextmanager
async def open_gateway_app(settings: Settings, **options: Any) -> AsyncGenerator[GatewayApp]:
    async with open_application(settings, kind="gateway", **options) as app:
        found = await _load_wanted(app)
        gateway = Gateway(app, app.settings.config.gateway, found.specs)
        yield GatewayApp(app, gateway, found.problems)
