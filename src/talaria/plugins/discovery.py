"""Where plugins may be, and which are there. Nothing of them is imported."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from talaria.plugins.plugin_manifest import BadManifest, PluginManifest, is_file, manifest_file, read_manifest

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


def shared_names(found: Mapping[str, FoundPlugin]) -> AbstractSet[str]:
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
            yield _found(folder, source, category="")
        else:
            yield from (_found(inner, source, folder.name) for inner in _folders(folder) if _is_plugin(inner))


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


def _found(folder: Path, source: Source, category: str) -> FoundPlugin:
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
