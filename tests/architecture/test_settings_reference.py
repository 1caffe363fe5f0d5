"""docs/reference/settings.md names every setting of the gateway, its platforms and the API, with its default, and no
other."""

import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from talaria.api.api_settings import ApiSettings
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.platforms.base import PlatformSettings
from talaria.platforms.loader import EVERYWHERE, manifests

FILE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
_, *_PARTS = re.split(r"^### (.+)$", FILE.read_text("utf-8"), flags=re.MULTILINE)
SECTIONS = dict(zip(_PARTS[::2], _PARTS[1::2], strict=True))


def defaults(text: str, prefix: str = "") -> Mapping[str, str]:
    """The defaults in its tables by the settings in their first column; `.b` after `x.a` is `x.b`."""
    found: dict[str, str] = {}
    for row in re.findall(r"^\| `.*$", text, re.MULTILINE):
        _, keys, *_, default, _, _ = row.split("|")
        parent = ""
        for name in re.findall(r"`([^`]+)`", keys):
            full = f"{parent}{name}" if name.startswith(".") else name
            parent = full.rpartition(".")[0]
            if full.startswith(prefix):
                found[full.removeprefix(prefix)] = default
    return found


def settings(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each by its path, with its default; what has a name of the person's choice is called NAME."""
    for field in msgspec.structs.fields(struct):
        path = f"{prefix}{field.encode_name}{'.NAME' if get_origin(field.type) is dict else ''}"
        inner = [one for one in (field.type, *get_args(field.type)) if _is_struct(one)]
        if not inner:
            yield path, field.default
        for one in inner:
            yield from settings(one, f"{path}.")


def _is_struct(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, msgspec.Struct)


def shown(default: Any) -> str:
    """How a default stands there; empty: it is told in words, or not at all."""
    match default:
        case bool():
            return str(default).lower()
        case int() | float():
            return f"{default:g}"
        case str():
            return default
        case _:
            return ""


def check(told: Mapping[str, str], there: Mapping[str, Any]) -> None:
    assert told.keys() == there.keys()
    assert [path for path, default in there.items() if shown(default) not in told[path]] == []


def test_the_settings_of_the_gateway_are_told() -> None:
    check(defaults(FILE.read_text("utf-8"), "gateway."), dict(settings(GatewaySettings)))


def test_the_settings_of_the_api_are_told() -> None:
    check(defaults(FILE.read_text("utf-8"), "api."), dict(settings(ApiSettings)))


def test_what_every_platform_has_is_told() -> None:
    check(defaults(SECTIONS["every platform"]), dict(settings(PlatformSettings)))
    assert {*_variables(SECTIONS["every platform"])} == {*EVERYWHERE}


@pytest.mark.parametrize("name", manifests())
def test_what_a_platform_has_of_its_own_is_told(name: str) -> None:
    own = dict(settings(importlib.import_module(f"talaria.platforms.{name}.config").SETTINGS))
    common = PlatformSettings.__struct_fields__
    check(defaults(SECTIONS[name]), {path: default for path, default in own.items() if path not in common})
    assert {*_variables(SECTIONS[name])} == {*manifests()[name].environment}


def _variables(text: str) -> list[str]:
    return re.findall(r"`([A-Z]+_[A-Z_]+)`", text)
