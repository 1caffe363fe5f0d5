"""Finds plugins and reads what their `plugin.yaml` says about them. Nothing of them is imported."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec
import yaml

from talaria.core.fs import read_bytes

Kind = Literal["standalone", "backend", "exclusive", "platform", "model-provider"]
NAMES = ("plugin.yaml", "plugin.yml")
MAX_BYTES = 64 * 1024
MAX_DEPTH = 20
GUESS_CHARS = 8192


class BadManifest(Exception):
    """`str()` of it says what is wrong, and follows the plugin's name."""


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
    """From PyPI, which it needs."""
    warnings: tuple[str, ...] = ()


def manifest_file(folder: Path) -> Path | None:
    return next((folder / name for name in NAMES if is_file(folder / name)), None)


def is_file(path: Path) -> bool:
    """False also for a link that cannot be followed."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_manifest(folder: Path) -> PluginManifest:
    """Raises `BadManifest`. Unknown fields are ignored: they may be for other programs."""
    file = manifest_file(folder)
    if file is None:
        return PluginManifest(folder.name, kind=_guess_kind(folder))
    fields = _read(file)
    given, packages, warnings = fields.get("kind"), fields.get("pip_dependencies"), tuple[str, ...]()
    kind: Kind = "standalone"
    if given is None:
        kind = _guess_kind(folder)
    elif given in get_args(Kind):
        kind = cast("Kind", given)
    else:
        warnings = (f"its kind {_to_text(given)[:50]!r} is unknown; it is treated as standalone",)
    return PluginManifest(
        name=_word(fields, "name") or folder.name,
        version=_word(fields, "version"),
        description=_word(fields, "description"),
        author=_word(fields, "author"),
        kind=kind,
        requires_env=tuple(_needs(fields.get("requires_env"))),
        optional_env=tuple(_needs(fields.get("optional_env"))),
        packages=tuple(map(_to_text, cast("list[object]", packages))) if isinstance(packages, list) else (),
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
        raise BadManifest(f"{file.name} has references, tags or deep nesting, which manifests may not have")
    if not isinstance(document, Mapping):
        raise BadManifest(f"{file.name} has no `name: value` lines")
    return cast("Mapping[str, Any]", document)


def _is_plain(text: bytes, loader: Any) -> bool:
    """Reading it does not make it grow, or nest too deeply. Raises `YAMLError`."""
    depth = 0
    events = cast("Iterator[Any]", yaml.parse(text, Loader=loader))  # pyright: ignore[reportUnknownMemberType]
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None or depth > MAX_DEPTH:
            return False
    return True


def _word(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    return " ".join(_to_text(value).split())[:500] if isinstance(value, str | int | float) else ""


def _to_text(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # a number of more digits than Python wants to write
        return ""


def _guess_kind(folder: Path) -> Kind:
    """From the beginning of its code, as plugins without a `kind` expect."""
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


Source = Literal["bundled", "user", "project", "package"]
Single = Literal["engine", "memory"]
GROUPS = ("talaria.plugins", "hermes_agent.plugins")
OWN_GROUP = GROUPS[0]
ENGINES, MEMORY, MODELS = "context_engine", "memory", "model-providers"
"""Folders for plugins of one kind, which are loaded when they are chosen."""
PROJECT_FOLDERS = (".talaria/plugins", ".hermes/plugins")
BUNDLED = Path(__file__).parent / "bundled"


@dataclass(frozen=True, slots=True)
class FoundPlugin:
    key: str
    """Its full name, by which it is enabled."""
    source: Source
    manifest: PluginManifest
    folder: Path | None = None
    entry_point: EntryPoint | None = None
    problem: str = ""
    """Why it cannot be used at all."""
    replaces: "FoundPlugin | None" = None
    """The plugin with the same key that this package would replace."""

    @property
    def names(self) -> AbstractSet[str]:
        """Everything that people may call it."""
        folder = self.folder.name if self.folder is not None else self.key
        return {self.key, self.manifest.name, folder}

    @property
    def category(self) -> str:
        """The folder of its kind that it is in; empty for most."""
        return self.key.partition("/")[0] if "/" in self.key else ""

    @property
    def single(self) -> Single | None:
        """If only one of its kind is in use at a time: which kind that is."""
        if self.category == ENGINES:
            return "engine"
        return "memory" if self.category == MEMORY or self.manifest.kind == "exclusive" else None

    @property
    def is_hermes_style(self) -> bool:
        """It may be written for Hermes, and import its names."""
        return self.entry_point is None or self.entry_point.group != OWN_GROUP

    @property
    def places(self) -> Sequence[Path]:
        """Where its code is: a folder or a file; more than one for a package that is spread over several."""
        if self.entry_point is None:
            return () if self.folder is None else (self.folder,)
        try:
            spec = find_spec(self.entry_point.module.partition(".")[0])  # a top-level package is not imported by this
        except (ImportError, ValueError, AttributeError):  # the last: an entry point that names no module
            return ()
        if spec is None:
            return ()
        if spec.submodule_search_locations:
            return tuple(Path(place) for place in spec.submodule_search_locations)
        return (Path(spec.origin),) if spec.origin else ()


@dataclass(frozen=True, slots=True)
class Places:
    user: Path
    bundled: Path = BUNDLED
    project: Path | None = None
    """The folder that the person works in; None: its plugins are not wanted."""
    with_packages: bool = True


def places(home: Path, cwd: Path, environment: Mapping[str, str], *, with_project: bool) -> Places:
    """`with_project`, or Hermes' variable for it, allows plugins of the working directory."""
    wants_project = with_project or environment.get("HERMES_ENABLE_PROJECT_PLUGINS", "") in ("1", "true", "yes")
    bundled = environment.get("TALARIA_BUNDLED_PLUGINS")
    return Places(home / "plugins", Path(bundled) if bundled else BUNDLED, cwd if wants_project else None)


def discover(places: Places) -> dict[str, FoundPlugin]:
    """By key; the later of two equal keys replaces the earlier: bundled, user, project, package."""
    roots: list[tuple[Path, Source]] = [(places.bundled, "bundled"), (places.user, "user")]
    if places.project is not None:
        roots.extend((places.project / folder, "project") for folder in PROJECT_FOLDERS)
    found: dict[str, FoundPlugin] = {}
    for root, source in roots:
        for folder in _folders(root):
            if _is_plugin(folder):
                plugins = [_read_plugin(folder, source, category="")]
            else:
                plugins = [_read_plugin(one, source, folder.name) for one in _folders(folder) if _is_plugin(one)]
            found |= {one.key: one for one in plugins}
    points = [point for group in GROUPS for point in entry_points(group=group)] if places.with_packages else []
    for point in points:
        about = PluginManifest(point.name)
        if point.dist is not None:
            facts = point.dist.metadata
            about = PluginManifest(point.name, point.dist.version, str(facts["Summary"]) if "Summary" in facts else "")
        found[point.name] = FoundPlugin(point.name, "package", about, entry_point=point, replaces=found.get(point.name))
    return found


def find_shared_names(found: Mapping[str, FoundPlugin]) -> AbstractSet[str]:
    """Names that more than one plugin has."""
    owners: dict[str, set[str]] = {}
    for one in found.values():
        for each in (one, one.replaces):
            for name in each.names if each else ():
                owners.setdefault(name, set()).add(one.key)
    return {name for name, keys in owners.items() if len(keys) > 1}


def own_names(one: FoundPlugin, shared: AbstractSet[str]) -> AbstractSet[str]:
    """The names by which settings mean this plugin: a shared name means none of its owners, a key always its own."""
    return {one.key} | (one.names - shared)


def _folders(root: Path) -> Iterable[Path]:
    def is_folder(entry: Path) -> bool:
        try:
            return entry.is_dir()
        except OSError:  # a link that cannot be followed
            return False

    try:
        return sorted(entry for entry in root.iterdir() if not entry.name.startswith((".", "__")) and is_folder(entry))
    except OSError:
        return ()


def _is_plugin(folder: Path) -> bool:
    if manifest_file(folder) is not None:
        return True
    return folder.parent.name in (ENGINES, MEMORY, MODELS) and is_file(folder / "__init__.py")


def _read_plugin(folder: Path, source: Source, category: str) -> FoundPlugin:
    problem = "" if is_file(folder / "__init__.py") else "has no __init__.py"
    try:
        manifest = read_manifest(folder)
    except BadManifest as fault:
        manifest, problem = PluginManifest(folder.name), str(fault)
    key = f"{category}/{folder.name}" if category else manifest.name
    return FoundPlugin(key, source, manifest, folder, problem=problem)
