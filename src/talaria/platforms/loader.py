"""Lists the platforms, reads their settings, and loads their code when it is needed."""

import importlib
import importlib.util
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import msgspec

from talaria.core.errors import BadConfig
from talaria.core.secret import decode_secret
from talaria.platforms.base import Kit, Platform, PlatformManifest, PlatformSettings

DISTRIBUTION = "talaria-agent"
EVERYWHERE = {"GATEWAY_ALLOWED_USERS": "allowed_users", "GATEWAY_ALLOW_ALL_USERS": "allow_all_users"}
_LISTS = frozenset({"allowed_users", "admin_users", "allowed_chats"})
_IDS = frozenset({*_LISTS, "home_channel"})
_YES = frozenset({"1", "true", "yes", "on"})
_UNKNOWN = re.compile(r"unknown field `(.*?)`")


def manifests() -> Mapping[str, PlatformManifest]:
    """The platforms that come with Talaria, by name."""
    files = sorted(Path(__file__).parent.glob("*/manifest.toml"))
    read = [msgspec.convert(tomllib.loads(file.read_text("utf-8")), PlatformManifest) for file in files]
    return {manifest.name: manifest for manifest in read}


def missing_modules(manifest: PlatformManifest) -> Sequence[str]:
    return [name for name in manifest.modules if importlib.util.find_spec(name) is None]


def install_hint(manifest: PlatformManifest) -> str:
    return f"pip install '{DISTRIBUTION}[{manifest.extra}]'"


def merge_settings(
    manifest: PlatformManifest, raw: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """A platform's settings from config.yaml and, where that does not set them, from the environment."""
    named = {**EVERYWHERE, **manifest.environment}
    from_environment = {setting: environment[name] for name, setting in named.items() if environment.get(name)}
    return {name: _normalize(name, value) for name, value in {**from_environment, **raw}.items()}


def is_wanted(manifest: PlatformManifest, raw: Mapping[str, Any] | None, environment: Mapping[str, str]) -> bool:
    """Whether config.yaml names the platform, or the environment sets everything that it requires."""
    if raw is not None:
        return raw.get("enabled", True) is not False
    found = merge_settings(manifest, {}, environment)
    return bool(manifest.required) and all(found.get(name) for name in manifest.required)


def read_settings(
    manifest: PlatformManifest, raw: Mapping[str, Any], environment: Mapping[str, str]
) -> PlatformSettings:
    """Loads the platform's `config` module. Raises `BadConfig`."""
    if missing := missing_modules(manifest):
        raise BadConfig(f"{manifest.label} needs {', '.join(missing)}: {install_hint(manifest)}")
    found = merge_settings(manifest, raw, environment)
    where = f"gateway.platforms.{manifest.name}"
    for name in manifest.required:
        if not found.get(name):
            variable = next((one for one, setting in manifest.environment.items() if setting == name), "")
            hint = f" ({variable} in .env)" if variable else ""
            raise BadConfig(f"{where}.{name} is not set{hint}. {manifest.how_to}".strip())
    config = importlib.import_module(f"talaria.platforms.{manifest.name}.config")
    try:
        settings: PlatformSettings = msgspec.convert(found, config.SETTINGS, dec_hook=decode_secret, strict=False)
    except msgspec.ValidationError as fault:
        complaint = f"{fault}."
        if unknown := _UNKNOWN.search(complaint):
            fields: Sequence[str] = config.SETTINGS.__struct_fields__
            near = get_close_matches(unknown[1], fields)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(fields)}."
            complaint = f"there is no setting {unknown[1]}{hint}"
        raise BadConfig(f"{where}: {complaint}") from fault
    config.check(settings)
    return settings


def open_platform(name: str, settings: PlatformSettings, kit: Kit) -> AbstractAsyncContextManager[Platform]:
    """Calls `open` of the platform's `platform.py`. `SETTINGS` in its `config.py` is the type of its settings."""
    return importlib.import_module(f"talaria.platforms.{name}.platform").open(settings, kit)


def _normalize(name: str, value: Any) -> Any:
    """People often write ids as numbers, and lists as one string."""
    if name in _LISTS:
        several = isinstance(value, list | tuple)
        listed = value.split(",") if isinstance(value, str) else cast("Sequence[object]", value) if several else [value]
        return [str(one).strip() for one in listed if str(one).strip()]
    if name == "allow_all_users" and isinstance(value, str):
        return value.lower() in _YES
    return str(value) if name in _IDS and isinstance(value, int) else value
