"""config.yaml → one frozen `Config`. Every mistake is one sentence that names the file, the key and the way out.

Plugins may keep settings in config.yaml, too. A section named after a plugin, memory provider or engine that the file
uses is theirs; so is a mapping under `plugins` that is not a setting of ours. Everything else is ours, and mistakes in
it are reported.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from talaria.config.schema import AuxiliaryConfig, Config, PluginsConfig
from talaria.core.errors import BadConfig
from talaria.core.secret import decode_secret

if TYPE_CHECKING:
    import yaml


def without_plugin_settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """Only our settings, with the models for plugins' tasks moved from `auxiliary` to `auxiliary.tasks`."""
    sections = [document.get(name) for name in ("plugins", "memory", "context")]
    plugins, memory, context = (
        cast("dict[str, Any]", section) if isinstance(section, dict) else {} for section in sections
    )
    enabled = plugins.get("enabled")
    used = [*cast("list[object]", enabled)] if isinstance(enabled, list) else []
    used += [name for name in (memory.get("provider"), context.get("engine")) if name]
    theirs = {_plain(str(name)) for name in used} - _settings(Config)
    kept = {key: value for key, value in document.items() if _plain(key) not in theirs}
    if isinstance(kept.get("plugins"), dict):
        known = _settings(PluginsConfig)
        kept["plugins"] = {
            key: value for key, value in kept["plugins"].items() if key in known or not isinstance(value, Mapping)
        }
    if isinstance(kept.get("auxiliary"), dict):
        kept["auxiliary"] = _move_tasks(kept["auxiliary"])
    return kept


def _move_tasks(auxiliary: Mapping[str, Any]) -> dict[str, Any]:
    known = _settings(AuxiliaryConfig)
    tasks: dict[str, Any] = {
        key: value for key, value in auxiliary.items() if key not in known and isinstance(value, Mapping)
    }
    if not tasks:
        return dict(auxiliary)
    rest = {key: value for key, value in auxiliary.items() if key not in tasks}
    models: dict[str, str] = {}
    for key, task in tasks.items():
        named = [task.get(name) for name in ("provider", "model")]
        if model := ":".join(str(name) for name in named if name and name != "auto"):
            models[key] = model
    return {**rest, "tasks": models}


def _settings(struct: type[msgspec.Struct]) -> set[str]:
    return set(struct.__struct_fields__)


def _plain(name: str) -> str:
    return name.rpartition("/")[2].replace("-", "_").lower()


MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_ALIASES = 30
"""Each can stand for many others: a hundred of them make a few lines larger than any memory."""

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
    except (yaml.YAMLError, ValueError, RecursionError) as fault:  # ValueError: an impossible date
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
    """Before the document is built: deep nesting would crash that, and many aliases would fill the memory."""
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
                    raise BadConfig(f"{file}: the alias *{event.anchor} is inside what it stands for; write it out.")
            case _:
                pass
        if len(inside) > MAX_DEPTH:
            raise BadConfig(f"{file} has more than {MAX_DEPTH} levels; settings have a few.")
        if aliases > MAX_ALIASES:
            raise BadConfig(f"{file} has more than {MAX_ALIASES} aliases (*name); write out what they stand for.")


def expand(value: Any, environment: Mapping[str, str], file: Path, path: str = "") -> Any:
    """Fills `${NAME}` in every string; `BadConfig` names one that is not set. Settings without a value are dropped."""
    if isinstance(value, dict):
        items = [(key, item) for key, item in cast("dict[Any, Any]", value).items() if item is not None]
        return {str(key): expand(item, environment, file, f"{path}.{key}".lstrip(".")) for key, item in items}
    if isinstance(value, list):
        return [expand(item, environment, file, f"{path}[{n}]") for n, item in enumerate(cast("list[Any]", value))]
    if not isinstance(value, str):
        return value

    def look_up(found: re.Match[str]) -> str:
        try:
            return environment[found[1]]
        except KeyError:
            sentence = f"{file}: {path} uses ${{{found[1]}}}, which is not set; add it to .env or export it."
            raise BadConfig(sentence) from None

    return _VARIABLE.sub(look_up, value)


def decode(document: dict[str, Any], file: Path) -> Config:
    try:
        return msgspec.convert(without_plugin_settings(document), Config, dec_hook=decode_secret)
    except msgspec.ValidationError as fault:
        raise BadConfig(f"{file}: {_explain(str(fault))}") from fault


def _explain(said: str) -> str:
    unknown = _UNKNOWN.search(said)
    if unknown is None:
        where = _WHERE.search(said)
        return f"{_readable(where[1])} is wrong: {said[: where.start()]}." if where else f"{said}."
    key, path = unknown[1], (unknown[2] or "$").removeprefix("$").removeprefix(".")
    struct: Any = Config
    for name in re.split(r"[.\[\]]+", path):
        if name and name != "..." and not name.isdecimal():  # otherwise it leads into a list or a dict
            types = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
            struct = _struct_in(types[name])
    known = list(struct.__struct_fields__)
    from difflib import get_close_matches  # noqa: PLC0415  (only needed after a mistake)

    near = get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it may be one of: {', '.join(known)}."
    return f"there is no setting {f'{_readable(path)}.{key}'.lstrip('.')!r}; {hint}"


def _readable(path: str) -> str:
    """`providers.*.wire` for msgspec's `providers[...].wire`."""
    return path.replace("[...]", ".*")


def _struct_in(type: Any) -> Any:
    """The struct inside a setting's type, however it is wrapped."""
    if hasattr(type, "__struct_fields__"):
        return type
    return next((found for part in getattr(type, "__args__", ()) if (found := _struct_in(part))), None)
