"""A project's `.mcp.json`: it starts programs, so it counts only after a person has agreed to it as it is now."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from talaria.core.errors import BadConfig, OperatorError
from talaria.core.fs import read_bytes, replace_file
from talaria.core.secret import decode_secret
from talaria.tools.mcp.server_entries import ServerEntry

FILE = ".mcp.json"
MAX_BYTES = 1 << 20
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_KNOWN = frozenset(ServerEntry.__struct_fields__)


@dataclass(frozen=True, slots=True)
class Project:
    """The file, read once: what was hashed is what is used."""

    file: Path
    content: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The servers that an application opens, and what is to be said of the others."""

    entries: Mapping[str, ServerEntry]
    notices: tuple[str, ...] = ()


def find(folder: Path) -> Project | None:
    """Of this folder alone: a file further up may be somebody else's."""
    file = folder / FILE
    try:
        content = read_bytes(file, MAX_BYTES + 1)
    except OSError:
        return None
    return Project(file.resolve(), content)


def is_trusted(project: Project, home: Path) -> bool:
    """Whether a person has agreed to exactly this content in exactly this place."""
    return _read_agreed(home).get(str(project.file)) == project.digest


def trust(project: Project, home: Path) -> None:
    file = _trust_file(home)
    agreed = {**_read_agreed(home), str(project.file): project.digest}
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, msgspec.json.format(msgspec.json.encode(agreed)), mode=0o600)
    except OSError as fault:
        raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault


def _trust_file(home: Path) -> Path:
    return home / "mcp-trust.json"


def _read_agreed(home: Path) -> dict[str, str]:
    """A file that cannot be read agrees to nothing."""
    try:
        return msgspec.json.decode(_trust_file(home).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def choose(configured: Mapping[str, ServerEntry], folder: Path, home: Path, environment: Mapping[str, str]) -> Chosen:
    """Those of the settings, and those of a trusted project. What the settings name, the project does not."""
    project = find(folder)
    if project is None:
        return Chosen(configured)
    if not is_trusted(project, home):
        return Chosen(configured, (f"{project.file} is not used until you agree to it: talaria mcp trust",))
    try:
        found = entries(project, environment)
    except BadConfig as fault:
        return Chosen(configured, (str(fault),))
    return Chosen({**found, **configured})


def entries(project: Project, environment: Mapping[str, str]) -> dict[str, ServerEntry]:
    """Other programs' keys are passed over. Raises `BadConfig`."""
    if len(project.content) > MAX_BYTES:
        raise BadConfig(f"{project.file} is longer than {MAX_BYTES:,} bytes.")
    try:
        document = msgspec.json.decode(project.content, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise BadConfig(f"{project.file} is not valid JSON: {fault}.") from fault
    servers: Any = document.get("mcpServers") or document.get("servers") or {}
    if not isinstance(servers, dict):
        raise BadConfig(f"{project.file}: mcpServers must hold servers by name.")
    return {name: _entry(project, name, given, environment) for name, given in cast("dict[str, Any]", servers).items()}


def _entry(project: Project, name: str, given: Any, environment: Mapping[str, str]) -> ServerEntry:
    if not isinstance(given, dict):
        raise BadConfig(f"{project.file}: the server {name} is described by no object.")
    fields = cast("dict[str, Any]", given)
    known = {key: value for key, value in fields.items() if key in _KNOWN and value is not None}
    if fields.get("disabled") is True:
        known["enabled"] = False
    if known.get("sandbox") is False:
        raise BadConfig(
            f"{project.file}: only your config.yaml can take a server out of the sandbox; {name} says `sandbox: false`."
        )
    if "command" in known:
        known["cwd"] = str(project.file.parent / str(known.get("cwd", ".")))
    try:
        return msgspec.convert(_expand(known, environment), ServerEntry, dec_hook=decode_secret)
    except (msgspec.ValidationError, KeyError) as fault:
        said = f"it uses ${{{fault.args[0]}}}, which is not set" if isinstance(fault, KeyError) else str(fault)
        raise BadConfig(f"{project.file}: the server {name} is not right: {said}.") from fault


def _expand(value: Any, environment: Mapping[str, str]) -> Any:
    """`${NAME}` and `${NAME:-otherwise}`, as other programs read this file. Raises `KeyError`."""
    if isinstance(value, dict):
        return {key: _expand(item, environment) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_expand(item, environment) for item in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda found: _look_up(found[1], found[2], environment), value)


def _look_up(name: str, otherwise: str | None, environment: Mapping[str, str]) -> str:
    if otherwise is None:
        return environment[name]
    return environment.get(name) or otherwise
