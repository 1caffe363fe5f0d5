"""A plugin's `plugin.yaml`: what it says of itself, read without importing it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec
import yaml

from talaria.files import read_bytes

Kind = Literal["standalone", "backend", "exclusive", "platform", "model-provider"]
NAMES = ("plugin.yaml", "plugin.yml")
MAX_BYTES = 64 * 1024
MAX_DEPTH = 20
GUESS_CHARS = 8192


class BadManifest(Exception):
    """`str()` of it says what is wrong, behind the plugin's name."""


class EnvironmentNeed(msgspec.Struct, frozen=True):
    """A variable that a plugin reads."""

    name: str
    description: str = ""
    url: str = ""
    is_secret: bool = True


class PluginManifest(msgspec.Struct, frozen=True):
    name: str
    version: str = ""
    description: str = ""
    author: str = ""
    kind: Kind = "standalone"
    requires_env: tuple[EnvironmentNeed, ...] = ()
    optional_env: tuple[EnvironmentNeed, ...] = ()
    packages: tuple[str, ...] = ()
    """From PyPI, which it needs beside it."""
    warnings: tuple[str, ...] = ()


def manifest_file(folder: Path) -> Path | None:
    return next((folder / name for name in NAMES if is_file(folder / name)), None)


def is_file(path: Path) -> bool:
    """Also where a link cannot be followed."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_manifest(folder: Path) -> PluginManifest:
    """Raises `BadManifest`. What it does not know it leaves alone: others may."""
    file = manifest_file(folder)
    if file is None:
        return PluginManifest(folder.name, kind=_guessed(folder))
    fields = _read(file)
    kind, warnings = _kind(fields.get("kind"), folder)
    return PluginManifest(
        name=_word(fields, "name") or folder.name,
        version=_word(fields, "version"),
        description=_word(fields, "description"),
        author=_word(fields, "author"),
        kind=kind,
        requires_env=tuple(_needs(fields.get("requires_env"))),
        optional_env=tuple(_needs(fields.get("optional_env"))),
        packages=_words(fields.get("pip_dependencies")),
        warnings=warnings,
    )


def _read(file: Path) -> Mapping[str, Any]:
    try:
        text = read_bytes(file, MAX_BYTES + 1)
    except OSError as fault:
        raise BadManifest(f"{file.name} cannot be read: {fault.strerror}") from fault
    if len(text) > MAX_BYTES:
        raise BadManifest(f"{file.name} is longer than {MAX_BYTES // 1024} KB")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        is_plain = _is_plain(text, loader)
        document: object = yaml.load(text, Loader=loader) if is_plain else None  # noqa: S506  (a safe one)
    except (yaml.YAMLError, ValueError) as fault:
        raise BadManifest(f"{file.name} is not valid YAML") from fault
    if not is_plain:
        raise BadManifest(f"{file.name} has references, tags or depths, which are not for manifests")
    if not isinstance(document, Mapping):
        raise BadManifest(f"{file.name} holds no `name: value` lines")
    return cast("Mapping[str, Any]", document)


def _is_plain(text: bytes, loader: Any) -> bool:
    """Nothing in it grows or dives when it is read. Raises `YAMLError`."""
    depth = 0
    events = cast("Iterator[Any]", yaml.parse(text, Loader=loader))  # pyright: ignore[reportUnknownMemberType]
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None or depth > MAX_DEPTH:
            return False
    return True


def _word(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    return " ".join(_said(value).split())[:500] if isinstance(value, str | int | float) else ""


def _said(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # a number of more digits than Python wants to write
        return ""


def _words(given: object) -> tuple[str, ...]:
    return tuple(_said(item) for item in cast("list[object]", given)) if isinstance(given, list) else ()


def _kind(given: object, folder: Path) -> tuple[Kind, tuple[str, ...]]:
    if given is None:
        return _guessed(folder), ()
    if given in get_args(Kind):
        return cast("Kind", given), ()
    return "standalone", (f"its kind {_said(given)[:50]!r} is not known; it is taken as standalone",)


def _guessed(folder: Path) -> Kind:
    """From the beginning of its code, as plugins that do not say it expect."""
    try:
        with (folder / "__init__.py").open(encoding="utf-8", errors="replace") as stream:
            source = stream.read(GUESS_CHARS)
    except OSError:
        return "standalone"
    if "register_memory_provider" in source or "MemoryProvider" in source:
        return "exclusive"
    if "register_provider" in source and "ProviderProfile" in source:
        return "model-provider"
    return "standalone"


def _needs(given: object) -> Iterator[EnvironmentNeed]:
    for item in cast("list[object]", given) if isinstance(given, list) else ():
        if isinstance(item, str):
            yield EnvironmentNeed(item)
        elif isinstance(item, Mapping):
            fields = cast("Mapping[str, Any]", item)
            name = _word(fields, "name")
            is_secret = bool(fields.get("secret", fields.get("password", True)))
            if name:
                yield EnvironmentNeed(name, _word(fields, "description"), _word(fields, "url"), is_secret)
