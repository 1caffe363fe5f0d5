"""Where plugins may be, and which are there. Nothing of them is imported."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from talaria.plugins.manifest import BadManifest, Manifest, manifest_file, read_manifest

Source = Literal["bundled", "user", "project", "package"]
GROUPS = ("talaria.plugins", "hermes_agent.plugins")
OWN_GROUP = GROUPS[0]
ENGINES, MEMORY, MODELS = "context_engine", "memory", "model-providers"
"""Folders whose plugins are of one kind, and are loaded when they are chosen."""
PROJECT_FOLDERS = (".talaria/plugins", ".hermes/plugins")
BUNDLED = Path(__file__).parent / "bundled"


@dataclass(frozen=True, slots=True)
class Found:
    key: str
    """Under which it is enabled."""
    source: Source
    manifest: Manifest
    folder: Path | None = None
    entry_point: EntryPoint | None = None
    problem: str = ""
    """Why it cannot be used at all."""

    @property
    def category(self) -> str:
        """Of those that stand in a folder of their kind."""
        return self.key.partition("/")[0] if "/" in self.key else ""

    @property
    def is_hermes_style(self) -> bool:
        """It was perhaps written for Hermes, and imports its names."""
        return self.entry_point is None or self.entry_point.group != OWN_GROUP

    @property
    def place(self) -> Path | None:
        """Its code: a folder or a file."""
        return self.folder if self.entry_point is None else _package_place(self.entry_point)


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
    bundled = environment.get("TALARIA_BUNDLED_PLUGINS") or environment.get("HERMES_BUNDLED_PLUGINS")
    return Places(home / "plugins", Path(bundled) if bundled else BUNDLED, cwd if wants_project else None)


def discover(places: Places) -> dict[str, Found]:
    """By key; of equal keys the one nearer to the person counts: bundled, user, project, package."""
    found = {one.key: one for one in _in_root(places.bundled, "bundled")}
    found |= {one.key: one for one in _in_root(places.user, "user")}
    if places.project is not None:
        for folder in PROJECT_FOLDERS:
            found |= {one.key: one for one in _in_root(places.project / folder, "project")}
    if places.with_packages:
        found |= {one.key: one for one in _in_packages()}
    return found


def _in_root(root: Path, source: Source) -> Iterator[Found]:
    for folder in _folders(root):
        if _is_plugin(folder):
            yield _found(folder, source, category="")
        else:
            yield from (_found(inner, source, folder.name) for inner in _folders(folder) if _is_plugin(inner))


def _folders(root: Path) -> Iterable[Path]:
    try:
        return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__")))
    except OSError:
        return ()


def _is_plugin(folder: Path) -> bool:
    if manifest_file(folder) is not None:
        return True
    return folder.parent.name in (ENGINES, MEMORY, MODELS) and (folder / "__init__.py").is_file()


def _found(folder: Path, source: Source, category: str) -> Found:
    try:
        manifest = read_manifest(folder)
    except BadManifest as problem:
        key = f"{category}/{folder.name}" if category else folder.name
        return Found(key, source, Manifest(folder.name), folder, problem=str(problem))
    key = f"{category}/{folder.name}" if category else manifest.name
    problem = "" if (folder / "__init__.py").is_file() else "has no __init__.py"
    return Found(key, source, manifest, folder, problem=problem)


def _in_packages() -> Iterator[Found]:
    for group in GROUPS:
        for point in entry_points(group=group):
            about = Manifest(point.name)
            if point.dist is not None:
                about = Manifest(point.name, point.dist.version, _summary(point.dist))
            yield Found(point.name, "package", about, entry_point=point)


def _summary(distribution: Distribution) -> str:
    about = distribution.metadata
    return str(about["Summary"]) if "Summary" in about else ""


def _package_place(point: EntryPoint) -> Path | None:
    """Of its top-level package, which looking for does not import."""
    try:
        spec = find_spec(point.module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin else None
