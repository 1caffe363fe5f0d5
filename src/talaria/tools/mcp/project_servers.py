"""Which servers are used, and which of them stay outside the sandbox.

A project's `.mcp.json` starts programs, so it counts only once a person has agreed to its present content.
"""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from talaria.core.errors import BadConfig, OperatorError
from talaria.core.fs import read_bytes, replace_file
from talaria.core.secret import decode_secret
from talaria.tools.mcp.offers import listing_file
from talaria.tools.mcp.server_entries import ServerEntry

FILE = ".mcp.json"
MAX_BYTES = 1 << 20
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_KNOWN = frozenset(ServerEntry.__struct_fields__)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Project:
    """The file, read once: what was hashed is what is used."""

    file: Path
    content: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class ChosenServers:
    """The servers to open, and notices about the others."""

    entries: Mapping[str, ServerEntry]
    notices: tuple[str, ...] = ()


def find(folder: Path) -> Project | None:
    """Only in this folder: a file further up may be somebody else's."""
    file = folder / FILE
    try:
        content = read_bytes(file, MAX_BYTES + 1)
    except OSError:
        return None
    return Project(file.resolve(), content)


def is_trusted(project: Project, home: Path) -> bool:
    """Whether a person has agreed to exactly this content in exactly this place."""
    return _read_trusted(home).get(str(project.file)) == project.digest


def trust(project: Project, home: Path) -> None:
    file = _trust_file(home)
    trusted = {**_read_trusted(home), str(project.file): project.digest}
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, msgspec.json.format(msgspec.json.encode(trusted)), mode=0o600)
    except OSError as fault:
        raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault


def _trust_file(home: Path) -> Path:
    return home / "mcp-trust.json"


def _read_trusted(home: Path) -> dict[str, str]:
    """A file that cannot be read trusts nothing."""
    try:
        return msgspec.json.decode(_trust_file(home).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def choose(
    configured: Mapping[str, ServerEntry], folder: Path, home: Path, environment: Mapping[str, str]
) -> ChosenServers:
    """The servers of the settings, and those of a trusted project whose names the settings do not use."""
    project = find(folder)
    if project is None:
        return ChosenServers(configured)
    if not is_trusted(project, home):
        return ChosenServers(configured, (f"{project.file} is not used until you agree to it: talaria mcp trust",))
    try:
        found = entries(project, environment)
    except BadConfig as fault:
        return ChosenServers(configured, (str(fault),))
    return ChosenServers({**found, **configured})


def entries(project: Project, environment: Mapping[str, str]) -> dict[str, ServerEntry]:
    """Ignores keys of other programs. Raises `BadConfig`."""
    if len(project.content) > MAX_BYTES:
        raise BadConfig(f"{project.file} is longer than {MAX_BYTES:,} bytes.")
    try:
        document = msgspec.json.decode(project.content, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise BadConfig(f"{project.file} is not valid JSON: {fault}.") from fault
    servers: Any = document.get("mcpServers") or document.get("servers") or {}
    if not isinstance(servers, dict):
        raise BadConfig(f"{project.file}: mcpServers must hold servers by name.")
    found: dict[str, ServerEntry] = {}
    for name, given in cast("dict[str, Any]", servers).items():
        if not isinstance(given, dict):
            raise BadConfig(f"{project.file}: the server {name} is not an object.")
        fields = cast("dict[str, Any]", given)
        known = {key: value for key, value in fields.items() if key in _KNOWN and value is not None}
        if fields.get("disabled") is True:
            known["enabled"] = False
        if known.get("sandbox") is False:
            raise BadConfig(
                f"{project.file}: only your config.yaml can take a server out of the sandbox; {name} says "
                "`sandbox: false`."
            )
        if "command" in known:
            known["cwd"] = str(project.file.parent / str(known.get("cwd", ".")))
        try:
            found[name] = msgspec.convert(_expand(known, environment), ServerEntry, dec_hook=decode_secret)
        except KeyError as fault:
            reason = f"it uses ${{{fault.args[0]}}}, which is not set"
            raise BadConfig(f"{project.file}: the server {name} is not valid: {reason}.") from fault
        except msgspec.ValidationError as fault:
            raise BadConfig(f"{project.file}: the server {name} is not valid: {fault}.") from fault
    return found


def _expand(value: Any, environment: Mapping[str, str]) -> Any:
    """Expands `${NAME}` and `${NAME:-default}`, as other programs that read this file do. Raises `KeyError`."""
    if isinstance(value, dict):
        return {key: _expand(item, environment) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_expand(item, environment) for item in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value

    def look_up(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        return environment[name] if default is None else environment.get(name) or default

    return _VARIABLE.sub(look_up, value)


EARLIER_FILE = "mcp-earlier.json"
MAX_EARLIER_BYTES = 1 << 20


def find_earlier(configured: Mapping[str, ServerEntry], home: Path) -> frozenset[str]:
    """The servers of config.yaml that an earlier version ran outside the sandbox. They stay there until the person
    decides; an entry with another command is a new one. Looks at the file system: not on the loop."""
    started = {name: entry for name, entry in configured.items() if entry.command is not None}
    if not started:
        return frozenset()
    file = home / EARLIER_FILE
    try:
        recorded = msgspec.json.decode(read_bytes(file, MAX_EARLIER_BYTES), type=dict[str, str])
    except FileNotFoundError:  # this version looks for the first time
        recorded = {name: _digest(one) for name, one in started.items() if listing_file(home, name, one).exists()}
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(file, msgspec.json.format(msgspec.json.encode(recorded)), mode=0o600)
        except OSError as fault:
            log.warning("cannot write %s: %s", file, fault.strerror)
    except (OSError, msgspec.MsgspecError, RecursionError):
        recorded = {}
    return frozenset(
        name for name, entry in started.items() if entry.sandbox is None and recorded.get(name) == _digest(entry)
    )


def _digest(entry: ServerEntry) -> str:
    return hashlib.sha256(msgspec.json.encode([entry.command, *entry.args])).hexdigest()[:32]
