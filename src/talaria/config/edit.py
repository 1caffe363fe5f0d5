"""Changing config.yaml and .env for the person: comments stay, the file is replaced whole or not at all."""

import os
from io import StringIO
from pathlib import Path
from typing import Any, cast

from talaria.config.load import decode, expand, parse_yaml
from talaria.config.secrets import environment, read_env
from talaria.model.errors import BadConfig, BadInput, OperatorError


def set_value(home: Path, key: str, value: str) -> Path:
    """Set one setting and answer the file it went to. A secret (`*_API_KEY`, `*_TOKEN`) goes to .env."""
    if key.isupper():
        return _set_secret(home / ".env", key, value)
    import ruamel.yaml  # noqa: PLC0415  (only this command writes YAML)

    file = home / "config.yaml"
    yaml: Any = ruamel.yaml.YAML()
    try:
        document: Any = (yaml.load(file.read_text("utf-8")) if file.exists() else None) or {}
    except ruamel.yaml.YAMLError as fault:
        raise BadConfig(f"{file} is not valid YAML; correct it before setting values.") from fault
    _put(document, key, _scalar(value))
    text = _dump(yaml, document)
    decode(expand(parse_yaml(text, file), environment(home / ".env"), file), file)  # refuse what would not load
    _replace(file, text)
    return file


def _put(document: Any, key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for name in parents:
        inner: object = document.setdefault(name, {})
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


def _dump(yaml: Any, document: Any) -> str:
    stream = StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _set_secret(file: Path, name: str, value: str) -> Path:
    if not name.isidentifier() or "\n" in value:
        raise BadInput(f"{name} cannot be kept in {file}.")
    read_env(file)  # refuse to touch a file that is not right
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    kept = [line for line in lines if line.strip().removeprefix("export ").partition("=")[0].strip() != name]
    _replace(file, "\n".join([*kept, f"{name}={value}"]) + "\n")
    return file


def _replace(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError as fault:
        temporary.unlink(missing_ok=True)
        raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault
