"""config.yaml → one frozen `Config`. Every mistake is one sentence that names the file, the key and the way out."""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from talaria.config.extras import ours
from talaria.config.schema import Config
from talaria.core.errors import BadConfig
from talaria.core.secret import decode_secret

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_ALIASES = 30
"""Each can stand for many others: with a hundred, a few lines become larger than any memory."""

if TYPE_CHECKING:
    import yaml

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_UNKNOWN = re.compile(r"unknown field `(.*?)`(?: - at `(.*)`)?")
_WHERE = re.compile(r" - at `\$\.?(.*)`$")


def load(file: Path, environment: Mapping[str, str]) -> Config:
    """Defaults if the file is not there. `environment` fills `${NAME}`."""
    document = read_yaml(file)
    try:
        return decode(expand(document, environment, file), file) if document else Config()
    except RecursionError as fault:
        raise BadConfig(f"{file} is nested too deeply to be read.") from fault


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise BadConfig(f"{file} is larger than {MAX_BYTES >> 20} MB; settings are much smaller.")
        text = content.decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except UnicodeDecodeError as fault:
        raise BadConfig(f"{file} is not UTF-8 text (byte {fault.start}); save it as UTF-8.") from fault
    except OSError as fault:
        raise BadConfig(f"Cannot read {file}: {fault.strerror}.") from fault
    return parse_yaml(text, file)


def parse_yaml(text: str, file: Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415  (20 ms that a home without config.yaml does not pay)

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        parse = cast("Callable[..., Iterable[yaml.Event]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]
        _check_shape(parse(text, Loader=loader), file)
        document = yaml.load(text, Loader=loader)  # noqa: S506  (safe ones)
    except (yaml.YAMLError, ValueError, RecursionError) as fault:  # ValueError: a date that there is not
        mark = getattr(fault, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        said = fault if isinstance(fault, ValueError) else None
        problem = getattr(fault, "problem", None) or said or "it cannot be read"
        raise BadConfig(f"{file} is not valid YAML{line}: {problem}. Correct that line.") from fault
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise BadConfig(f"{file} must hold settings as `name: value` lines.")
    return cast("dict[str, Any]", document)


def _check_shape(events: Iterable["yaml.Event"], file: Path) -> None:
    """Before it is built: deep nesting would crash that, and many aliases would fill the memory."""
    from yaml import AliasEvent, CollectionEndEvent, CollectionStartEvent  # noqa: PLC0415

    inside: list[str | None] = []
    aliases = 0
    for event in events:
        match event:
            case CollectionStartEvent():
                inside.append(event.anchor)
            case CollectionEndEvent():
                inside.pop()
            case AliasEvent():
                aliases += 1
                if event.anchor in inside:
                    raise BadConfig(f"{file}: the alias *{event.anchor} is inside of what it stands for; write it out.")
            case _:
                pass
        if len(inside) > MAX_DEPTH:
            raise BadConfig(f"{file} has more than {MAX_DEPTH} levels; settings have a few.")
        if aliases > MAX_ALIASES:
            raise BadConfig(f"{file} has more than {MAX_ALIASES} aliases (*name); write out what they stand for.")


def expand(value: Any, environment: Mapping[str, str], file: Path, path: str = "") -> Any:
    """`${NAME}` in every string; a name that is not set is an error that names it. What is left empty is left out."""
    if isinstance(value, dict):
        items = [(key, item) for key, item in cast("dict[Any, Any]", value).items() if item is not None]
        return {str(key): expand(item, environment, file, f"{path}.{key}".lstrip(".")) for key, item in items}
    if isinstance(value, list):
        return [expand(item, environment, file, f"{path}[{n}]") for n, item in enumerate(cast("list[Any]", value))]
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda found: _lookup(found[1], environment, file, path), value)


def _lookup(name: str, environment: Mapping[str, str], file: Path, path: str) -> str:
    try:
        return environment[name]
    except KeyError:
        raise BadConfig(f"{file}: {path} uses ${{{name}}}, which is not set; add it to .env or export it.") from None


def decode(document: dict[str, Any], file: Path) -> Config:
    try:
        return msgspec.convert(ours(document), Config, dec_hook=decode_secret)
    except msgspec.ValidationError as fault:
        raise BadConfig(f"{file}: {_explain(str(fault))}") from fault


def _explain(said: str) -> str:
    unknown = _UNKNOWN.search(said)
    if unknown is not None:
        path = (unknown[2] or "$").removeprefix("$").removeprefix(".")
        return _unknown_key(unknown[1], path)
    where = _WHERE.search(said)
    if where is None:
        return f"{said}."
    return f"{_readable(where[1])} is wrong: {said[: where.start()]}."


def _readable(path: str) -> str:
    """`providers.*.wire` for msgspec's `providers[...].wire`."""
    return path.replace("[...]", ".*")


def _unknown_key(key: str, path: str) -> str:
    known = _known_keys(path)
    near = get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it may be one of: {', '.join(known)}."
    return f"there is no setting {f'{_readable(path)}.{key}'.lstrip('.')!r}; {hint}"


def _known_keys(path: str) -> list[str]:
    """The settings that may stand at `path`."""
    struct: Any = Config
    for name in re.split(r"[.\[\]]+", path):
        if name and name != "..." and not name.isdecimal():  # else it leads into a list or a dict
            types = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
            struct = _struct_in(types[name])
    return list(struct.__struct_fields__)


def _struct_in(type: Any) -> Any:
    """The one struct that a setting's type is made of, however it is wrapped."""
    if hasattr(type, "__struct_fields__"):
        return type
    return next((found for part in getattr(type, "__args__", ()) if (found := _struct_in(part))), None)
