"""Changes to config.yaml and .env on the person's behalf: comments stay, and the file is replaced whole or not at all.

Also checks that nobody else can change the settings, because that person would decide what runs here.
"""

import grp
import os
import pwd
import stat
import time
from collections.abc import Collection
from io import StringIO
from pathlib import Path
from typing import Any, cast

from talaria.config import paths
from talaria.config.lenient import decode_leniently, read_env_leniently
from talaria.config.load import parse_yaml, read_yaml
from talaria.config.project_settings import check_key, note_project, project_file
from talaria.config.secrets import strip_quotes
from talaria.core.errors import BadConfig, BadInput, OperatorError
from talaria.core.fs import replace_file


def set_value(home: Path, key: str, value: str) -> Path:
    """Sets one setting and returns the file it went to. A name in capitals (`OPENAI_API_KEY`) goes to .env.

    Mistakes elsewhere in the files stay, and do not prevent it. Raises `BadConfig`, `BadInput`, `OperatorError`.
    """
    if not key.isupper():
        return _change(home, paths.config_file(home), key, value)
    file = paths.secrets_file(home)
    try:
        before = file.read_text("utf-8-sig") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise BadConfig(f"Cannot read {file}: {reason}.") from fault
    _replace(file, with_secret(before, key, value, file))
    return file


def set_project_value(home: Path, project: Path, key: str, value: str) -> Path:
    """Like `set_value`, for one project only."""
    check_key(key)
    file = _change(home, project_file(home, project), key, value)
    note_project(home, project)
    return file


def unset_value(home: Path, key: str, project: Path | None = None) -> Path:
    """Goes back to the default or, for a project, to what config.yaml says.

    Raises `BadConfig`, `BadInput`, `OperatorError`.
    """
    return _change(home, paths.config_file(home) if project is None else project_file(home, project), key, None)


def _change(home: Path, file: Path, key: str, value: str | None) -> Path:
    import ruamel.yaml  # noqa: PLC0415  (only this command writes YAML)

    known_settings = read_yaml(file)  # refuse to touch a file that cannot be read
    before = file.read_text("utf-8") if file.exists() else ""
    yaml: Any = ruamel.yaml.YAML()
    try:
        document: Any = yaml.load(before) if known_settings else {}
    except ruamel.yaml.YAMLError as fault:
        raise BadConfig(f"{file} is not valid YAML; correct it before setting values.") from fault
    if value is None:
        _drop(document, key, file)
    else:
        _put(document, key, _quote_misread(_scalar(value)))
    written = _dump(yaml, document) if document else ""
    comments = "".join(f"{line}\n" for line in before.splitlines() if line.lstrip().startswith("#"))
    text = written if known_settings else comments + written
    known = {**read_env_leniently(paths.secrets_file(home))[0], **os.environ}
    _, known_problems = decode_leniently(known_settings, known, file)
    _, problems = decode_leniently(parse_yaml(text, file), known, file)
    for problem in problems:  # refuse what would not load
        if value is not None and problem.is_about(key.split(".")) and "Expected `array`" in problem.sentence:
            if not isinstance(_scalar(value), list | dict):
                return _change(home, file, key, f"[{value}]")  # one word for a list of one
            raise BadConfig(f"{problem.sentence} Write a list in brackets, such as '[one, two]'.")
        if problem.is_about(key.split(".")) or problem.sentence not in {one.sentence for one in known_problems}:
            raise BadConfig(problem.sentence)
    _replace(file, text)
    return file


def take_out(home: Path, keys: Collection[str]) -> Path:
    """Deletes these keys from the top of config.yaml, and returns the path of a copy of the file as it was.

    Raises `BadConfig`, `OSError`.
    """
    import ruamel.yaml  # noqa: PLC0415

    file = paths.config_file(home)
    read_yaml(file)  # refuse to touch a file that cannot be read
    before = file.read_bytes()
    yaml: Any = ruamel.yaml.YAML()
    try:
        document: Any = yaml.load(before.decode())
    except ruamel.yaml.YAMLError as fault:
        raise BadConfig(f"{file} is not valid YAML; correct it first.") from fault
    for key in keys:
        document.pop(key, None)
    kept = file.with_name(f"{file.name}.before-{time.strftime('%Y-%m-%d-%H%M%S')}")
    replace_file(kept, before, mode=0o600)
    _replace(file, _dump(yaml, document) if document else "")
    return kept


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


def _drop(document: Any, key: str, file: Path, above: str = "") -> None:
    """And the section around it, if it is empty then."""
    name, _, rest = key.partition(".")
    if not isinstance(document, dict) or name not in document:
        raise BadInput(f"{above}{key} is not set in {file}.")
    inner = cast("Any", document)
    if rest:
        _drop(inner[name], rest, file, f"{above}{name}.")
    if not rest or not inner[name]:
        del inner[name]


def _scalar(value: str) -> Any:
    import yaml  # noqa: PLC0415

    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        return value


def _quote_misread(value: Any) -> Any:
    """This is written as YAML 1.2 but read as 1.1, where words such as `on` and `no` are not text."""
    import ruamel.yaml.scalarstring  # noqa: PLC0415

    if isinstance(value, list):
        return [_quote_misread(item) for item in cast("list[Any]", value)]
    is_misread = isinstance(value, str) and _scalar(value) != value
    return ruamel.yaml.scalarstring.DoubleQuotedScalarString(value) if is_misread else value


def _dump(yaml: Any, document: Any) -> str:
    stream = StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def with_secret(before: str, name: str, value: str, file: Path) -> str:
    """The content of .env with one line changed; `file` is for the message of `BadInput`."""
    written = next((form for form in (value, f'"{value}"', f"'{value}'") if strip_quotes(form.strip()) == value), None)
    if not name.isidentifier() or written is None or len(value.splitlines()) > 1:
        raise BadInput(f"{name} cannot be stored in {file}: a name has letters, digits and _, and a value is one line.")
    lines = before.splitlines()
    kept = [line for line in lines if line.strip().removeprefix("export ").partition("=")[0].strip() != name]
    return "\n".join([*kept, f"{name}={written}"]) + "\n"


def _replace(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, text.encode(), mode=0o600)
    except OSError as fault:
        raise OperatorError(
            f"Cannot write {file}: {fault.strerror}. Make its folder writable, or set TALARIA_HOME to another."
        ) from fault


def check_writers(home: Path, file: Path) -> None:
    """Raises `BadConfig` if others can change the settings, or the folder that they are in."""
    for path in (home, file):
        try:
            found = path.stat()
        except OSError:  # reading it will report this
            continue
        if can_others_write(found):
            raise BadConfig(f"Other users can change {path}, and so what Talaria does; run: chmod go-w {path}")
        is_shared = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH
        if is_shared and file.exists() and file.stat().st_uid not in (0, os.geteuid()):
            raise BadConfig(f"{file} belongs to another user; set TALARIA_HOME to a folder of your own.")


def can_others_write(found: os.stat_result) -> bool:
    """In a folder such as /tmp others can create files, but not change existing ones."""
    if found.st_mode & stat.S_IWOTH:
        return not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX)
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


def _is_own_group(gid: int) -> bool:
    """Many systems give every user a group of the same name, and let it write by default."""
    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:  # in a container there are often no names
        return gid == os.getegid()
    return group.gr_name == name and not set(group.gr_mem) - {name}
