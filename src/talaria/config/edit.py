"""Changing config.yaml and .env for the person: comments stay, the file is replaced whole or not at all."""

from io import StringIO
from pathlib import Path
from typing import Any, cast

from talaria.config import paths
from talaria.config.load import decode, expand, parse_yaml, read_yaml
from talaria.config.secrets import environment, read_env, unquoted
from talaria.files import replace_file
from talaria.model.errors import BadConfig, BadInput, OperatorError


def set_value(home: Path, key: str, value: str) -> Path:
    """Set one setting and answer the file it went to. A name in capitals (`OPENAI_API_KEY`) goes to .env."""
    if key.isupper():
        return _set_secret(paths.secrets_file(home), key, value)
    import ruamel.yaml  # noqa: PLC0415  (only this command writes YAML)

    file = paths.config_file(home)
    is_empty = not read_yaml(file)  # refuse to touch a file that is not right
    before = file.read_text("utf-8") if file.exists() else ""
    yaml: Any = ruamel.yaml.YAML()
    try:
        document: Any = {} if is_empty else yaml.load(before)
    except ruamel.yaml.YAMLError as fault:
        raise BadConfig(f"{file} is not valid YAML; correct it before setting values.") from fault
    _put(document, key, _quoted(_scalar(value)))
    text = _comments(before) + _dump(yaml, document) if is_empty else _dump(yaml, document)
    known = environment(paths.secrets_file(home))
    decode(expand(parse_yaml(text, file), known, file), file)  # refuse what would not load
    _replace(file, text)
    return file


def _put(document: Any, key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for name in parents:
        if document.get(name) is None:
            document[name] = {}
        inner: object = document[name]
        if not isinstance(inner, dict):
            raise BadInput(f"{name} in {key} holds a value, not settings.")
        document = cast("Any", inner)
    document[last] = value


def _scalar(value: str) -> Any:
    import yaml  # noqa: PLC0415

    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        return value


def _quoted(value: Any) -> Any:
    """What is written here as YAML 1.2 is read as 1.1, where also `on` and `no` are no text."""
    import ruamel.yaml.scalarstring  # noqa: PLC0415

    if isinstance(value, list):
        return [_quoted(item) for item in cast("list[Any]", value)]
    is_misread = isinstance(value, str) and _scalar(value) != value
    return ruamel.yaml.scalarstring.DoubleQuotedScalarString(value) if is_misread else value


def _comments(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if line.lstrip().startswith("#"))


def _dump(yaml: Any, document: Any) -> str:
    stream = StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _set_secret(file: Path, name: str, value: str) -> Path:
    written = next((form for form in (value, f'"{value}"', f"'{value}'") if unquoted(form.strip()) == value), None)
    if not name.isidentifier() or written is None or len(value.splitlines()) > 1:
        raise BadInput(f"{name} cannot be kept in {file}: a name is letters, digits and _, a value is one line.")
    read_env(file)  # refuse to touch a file that is not right
    lines = file.read_text("utf-8-sig").splitlines() if file.exists() else []
    kept = [line for line in lines if line.strip().removeprefix("export ").partition("=")[0].strip() != name]
    _replace(file, "\n".join([*kept, f"{name}={written}"]) + "\n")
    return file


def _replace(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, text.encode(), mode=0o600)
    except OSError as fault:
        raise OperatorError(
            f"Cannot write {file}: {fault.strerror}. Make its folder writable, or set TALARIA_HOME to another."
        ) from fault
