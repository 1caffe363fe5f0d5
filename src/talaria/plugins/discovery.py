"""Where plugins may be, and which are there. Nothing of them is imported.

A plugin's `plugin.yaml`: what it says of itself, read without importing it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, EntryPoint, entry_points
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
        return PluginManifest(folder.name, kind=_guess_kind(folder))
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
    return " ".join(_to_text(value).split())[:500] if isinstance(value, str | int | float) else ""


def _to_text(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # a number of more digits than Python wants to write
        return ""


def _words(given: object) -> tuple[str, ...]:
    return tuple(_to_text(item) for item in cast("list[object]", given)) if isinstance(given, list) else ()


def _kind(given: object, folder: Path) -> tuple[Kind, tuple[str, ...]]:
    if given is None:
        return _guess_kind(folder), ()
    if given in get_args(Kind):
        return cast("Kind", given), ()
    return "standalone", (f"its kind {_to_text(given)[:50]!r} is not known; it is taken as standalone",)


def _guess_kind(folder: Path) -> Kind:
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


Source = Literal["bundled", "user", "project", "package"]
Single = Literal["engine", "memory"]
GROUPS = ("talaria.plugins", "hermes_agent.plugins")
OWN_GROUP = GROUPS[0]
ENGINES, MEMORY, MODELS = "context_engine", "memory", "model-providers"
"""Folders whose plugins are of one kind, and are loaded when they are chosen."""
PROJECT_FOLDERS = (".talaria/plugins", ".hermes/plugins")
BUNDLED = Path(__file__).parent / "bundled"


@dataclass(frozen=True, slots=True)
class FoundPlugin:
    key: str
    """Under which it is enabled."""
    source: Source
    manifest: PluginManifest
    folder: Path | None = None
    entry_point: EntryPoint | None = None
    problem: str = ""
    """Why it cannot be used at all."""
    behind: "FoundPlugin | None" = None
    """The one of the same key that this package would take the place of."""

    @property
    def names(self) -> AbstractSet[str]:
        """All that people may call it."""
        folder = self.folder.name if self.folder is not None else self.key
        return {self.key, self.manifest.name, folder}

    @property
    def category(self) -> str:
        """Of those that stand in a folder of their kind."""
        return self.key.partition("/")[0] if "/" in self.key else ""

    @property
    def single(self) -> Single | None:
        """What it is, if it is of a kind of which one is chosen."""
        if self.category == ENGINES:
            return "engine"
        return "memory" if self.category == MEMORY or self.manifest.kind == "exclusive" else None

    @property
    def is_hermes_style(self) -> bool:
        """It was perhaps written for Hermes, and imports its names."""
        return self.entry_point is None or self.entry_point.group != OWN_GROUP

    @property
    def places(self) -> Sequence[Path]:
        """Of its code: a folder or a file; more than one if it is spread over several."""
        if self.entry_point is not None:
            return _package_places(self.entry_point)
        return () if self.folder is None else (self.folder,)


@dataclass(frozen=True, slots=True)
class Places:
    user: Path
    bundled: Path = BUNDLED
    project: Path | None = None
    """Of the folder that the person works in; None: those are not wanted."""
    with_packages: bool = True


def places(home: Path, cwd: Path, environment: Mapping[str, str], *, with_project: bool) -> Places:
    """`with_project`, or the variable that Hermes has for it, lets plugins of the working directory in."""
    wants_project = with_project or environment.get("HERMES_ENABLE_PROJECT_PLUGINS", "") in ("1", "true", "yes")
    bundled = environment.get("TALARIA_BUNDLED_PLUGINS")
    return Places(home / "plugins", Path(bundled) if bundled else BUNDLED, cwd if wants_project else None)


def discover(places: Places) -> dict[str, FoundPlugin]:
    """By key; of equal keys the one nearer to the person counts: bundled, user, project, package."""
    found = {one.key: one for one in _in_root(places.bundled, "bundled")}
    found |= {one.key: one for one in _in_root(places.user, "user")}
    if places.project is not None:
        for folder in PROJECT_FOLDERS:
            found |= {one.key: one for one in _in_root(places.project / folder, "project")}
    if places.with_packages:
        for one in _in_packages():
            found[one.key] = replace(one, behind=found.get(one.key))
    return found


def find_shared_names(found: Mapping[str, FoundPlugin]) -> AbstractSet[str]:
    """Those that more than one plugin goes by."""
    owners: dict[str, set[str]] = {}
    for one in found.values():
        for each in (one, one.behind):
            for name in each.names if each else ():
                owners.setdefault(name, set()).add(one.key)
    return {name for name, keys in owners.items() if len(keys) > 1}


def own_names(one: FoundPlugin, shared: AbstractSet[str]) -> AbstractSet[str]:
    """Who borrows the name of another does not borrow what was said under it; a key is always its own."""
    return {one.key} | (one.names - shared)


def _in_root(root: Path, source: Source) -> Iterator[FoundPlugin]:
    for folder in _folders(root):
        if _is_plugin(folder):
            yield _read_plugin(folder, source, category="")
        else:
            yield from (_read_plugin(inner, source, folder.name) for inner in _folders(folder) if _is_plugin(inner))


def _folders(root: Path) -> Iterable[Path]:
    try:
        return sorted(entry for entry in root.iterdir() if not entry.name.startswith((".", "__")) and _is_folder(entry))
    except OSError:
        return ()


def _is_folder(entry: Path) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that cannot be followed
        return False


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


def _in_packages() -> Iterator[FoundPlugin]:
    for group in GROUPS:
        for point in entry_points(group=group):
            about = PluginManifest(point.name)
            if point.dist is not None:
                about = PluginManifest(point.name, point.dist.version, _summary(point.dist))
            yield FoundPlugin(point.name, "package", about, entry_point=point)


def _summary(distribution: Distribution) -> str:
    about = distribution.metadata
    return str(about["Summary"]) if "Summary" in about else ""


def _package_places(point: EntryPoint) -> Sequence[Path]:
    """Of its top-level package, which looking for does not import. A namespace may have several."""
    try:
        spec = find_spec(point.module.partition(".")[0])
    except (ImportError, ValueError, AttributeError):  # the last: an entry point that names no module
        return ()
    if spec is None:
        return ()
    if spec.submodule_search_locations:
        return tuple(Path(place) for place in spec.submodule_search_locations)
    return (Path(spec.origin),) if spec.origin else ()
