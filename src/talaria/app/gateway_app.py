"""From settings to a running gateway: which platforms are wanted, and what each is opened with."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from talaria.app.build import Application, open_application, reconfigure
from talaria.app.settings import Settings
from talaria.compat.hermes.platforms.offered import PluginPlatform
from talaria.config.secrets import find_secrets
from talaria.core.clock import Clock
from talaria.core.errors import BadConfig
from talaria.gateway.gateway_state import PlatformSpec
from talaria.gateway.service import Gateway
from talaria.platforms.base import Kit, Platform, PlatformManifest, PlatformSettings, Sender
from talaria.platforms.loader import is_wanted, manifests, open_platform, read_settings

Invites = Callable[[Sender], bool]


@dataclass(frozen=True, slots=True)
class WantedPlatforms:
    """What the settings come to."""

    doors: tuple[PlatformSpec, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a platform that is wanted cannot be used."""


def load_wanted(
    settings: Settings, clock: Clock, plugins: Mapping[str, PluginPlatform] | None = None
) -> WantedPlatforms:
    """Loads the code of the platforms that are wanted; that of `plugins` is there already."""
    given, known, theirs = settings.config.gateway.platforms, manifests(), plugins or {}
    makers: dict[str, Callable[[], PlatformSpec]] = {}
    for name, manifest in known.items():
        if is_wanted(manifest, given.get(name), settings.environment):
            makers[name] = partial(_door, manifest, given.get(name, {}), settings, clock)
    for name, plugin in theirs.items():
        if given[name].get("enabled", True) is not False if name in given else plugin.is_set_up:
            makers[name] = partial(_plugin_door, plugin, given.get(name, {}), settings, clock)
    doors: list[PlatformSpec] = []
    problems = {
        name: f"There is no platform {name}; there are {', '.join((*known, *theirs))}."
        for name in given.keys() - known.keys() - theirs.keys()
    }
    for name, make in makers.items():
        try:
            doors.append(make())
        except BadConfig as fault:
            problems[name] = str(fault)
    return WantedPlatforms(tuple(doors), problems)


async def _load_wanted(app: Application) -> WantedPlatforms:
    return load_wanted(app.settings, app.clock, await app.extensions.platforms() if app.extensions else None)


def _plugin_door(plugin: PluginPlatform, raw: Mapping[str, Any], settings: Settings, clock: Clock) -> PlatformSpec:
    if plugin.problem:
        raise BadConfig(plugin.problem)
    found = plugin.settings(raw)
    settings.redactor.learn(find_secrets({}, found))
    folder = settings.home / "platforms" / plugin.name

    def open_it(is_allowed: Invites) -> AbstractAsyncContextManager[Platform]:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return plugin.open(found, Kit(folder, clock, is_allowed))

    return PlatformSpec(plugin.name, found, open_it)


def _door(manifest: PlatformManifest, raw: Mapping[str, Any], settings: Settings, clock: Clock) -> PlatformSpec:
    found = read_settings(manifest, raw, settings.environment)
    settings.redactor.learn(find_secrets({}, found))
    return PlatformSpec(manifest.name, found, partial(_open, manifest.name, found, settings.home, clock))


def _open(
    name: str, settings: PlatformSettings, home: Path, clock: Clock, is_allowed: Invites
) -> AbstractAsyncContextManager[Platform]:
    folder = home / "platforms" / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return open_platform(name, settings, Kit(folder, clock, is_allowed))


@dataclass(slots=True)
class GatewayApp:
    """A gateway, and the way to give it new settings."""

    app: Application
    gateway: Gateway
    problems: Mapping[str, str]

    async def reload(self, settings: Settings) -> None:
        """Raises `BadConfig`, and then all stays as it was."""
        app = reconfigure(self.app, settings)
        found = await _load_wanted(app)
        await self.gateway.reload(app, settings.config.gateway, found.doors)
        self.app, self.problems = app, found.problems


@asynccontextmanager
async def open_switchboard(settings: Settings, **options: Any) -> AsyncGenerator[GatewayApp]:
    async with open_application(settings, kind="gateway", **options) as app:
        found = await _load_wanted(app)
        gateway = Gateway(app, app.settings.config.gateway, found.doors)
        yield GatewayApp(app, gateway, found.problems)
