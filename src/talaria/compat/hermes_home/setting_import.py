"""Hermes' config.yaml → settings of ours. One is taken if we do not have it, know it, and still start with it."""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from talaria.compat.hermes_home import model_settings
from talaria.compat.hermes_home.report import (
    NO_COUNTERPART,
    Document,
    ImportStep,
    Key,
    Permissions,
    Proposals,
    SettingGroup,
    make_left_step,
    make_present_step,
    make_taken_step,
    propose,
    section,
    word,
)
from talaria.config import routes, selection
from talaria.config.edit import set_value
from talaria.config.load import decode, expand
from talaria.core.errors import MissingCredential, TalariaError
from talaria.providers.catalog import catalog

_SAME = {
    "agent.max_turns": "agent.max_turns",
    "agent.api_max_retries": "agent.api_max_retries",
    "agent.reasoning_effort": "model.reasoning_effort",
    "model.streaming": "model.streaming",
    "compression.enabled": "compression.enabled",
    "compression.threshold": "compression.threshold",
    "context.engine": "context.engine",
    "memory.provider": "memory.provider",
    "plugins.disabled": "plugins.disabled",
    "terminal.timeout": "terminal.timeout_s",
    "terminal.docker_image": "terminal.docker.image",
}
"""Settings that mean the same: Hermes' name, and ours."""
_DEFAULTS = {"context.engine": "compressor", "memory.provider": "builtin"}
"""What both use by default; anything else is a plugin's."""
_PERMISSIONS = {
    "plugins.entries": "it says what plugins may do: decide that again here",
    "approvals": "it says what needs your approval: decide that again here",
    "terminal.backend": "commands run in a sandbox here; see terminal.backend in the settings",
}
_SERVER_NAMES = ("command", "args", "env", "cwd", "enabled", "timeout", "connect_timeout", "tools")
_HANDLED_ELSEWHERE = frozenset(
    {
        *("model", "provider", "base_url", "api_base", "context_length", "providers", "custom_providers"),
        *("fallback_providers", "fallback_model", "auxiliary", "mcp_servers", "plugins.enabled", "_config_version"),
    }
)


def propose_settings(document: Document, may: Permissions) -> Proposals:
    """In the order in which they must be taken. Pure."""
    own = model_settings.own_providers(document)
    yield from model_settings.propose_model(document, own, may)
    yield from model_settings.propose_providers(document, may)
    yield from model_settings.propose_fallbacks(document, own, may)
    yield from model_settings.propose_auxiliary(document, own)
    for theirs, ours in _SAME.items():
        group, _, name = theirs.partition(".")
        value = section(document, group).get(name)
        if value not in (None, "", []) and word(value) != _DEFAULTS.get(theirs):
            note = f"it works once you have installed and enabled the plugin {value}" if theirs in _DEFAULTS else ""
            yield propose(theirs, ours, value, note=note)
    yield from _propose_servers(document)
    groups = {theirs.partition(".")[0] for theirs in _SAME} - {"model"}  # listed setting by setting
    rest: list[tuple[str, Any]] = []
    for name, value in document.items():
        if name in groups:
            rest.extend((f"{name}.{key}", inner) for key, inner in section(document, name).items())
        else:
            rest.append((str(name), value))
    for key, value in rest:
        if value not in (None, "", [], {}) and key not in _HANDLED_ELSEWHERE and key not in _SAME:
            yield make_left_step("setting", key, _PERMISSIONS.get(key, NO_COUNTERPART))


def _propose_servers(document: Document) -> Proposals:
    """MCP servers that are started on this machine: they run in the sandbox. What may be secret is not copied."""
    servers = section(document, "mcp_servers")
    for name in map(str, servers):
        given, origin = section(servers, name), f"mcp_servers.{name}"
        entry = {key: given[key] for key in _SERVER_NAMES if given.get(key) not in (None, [], {})}
        if "command" not in entry or not re.fullmatch(r"[\w-]+", name):
            yield make_left_step("setting", origin, "to add a server is to trust it: talaria mcp add")
        elif any(not re.fullmatch(r"\$\{\w+\}", str(value)) for value in section(given, "env").values()):
            yield make_left_step("setting", origin, "its env may contain secrets: talaria mcp add")
        else:
            note = f"it runs in the sandbox and reaches no host; to change that: talaria mcp sandbox {name}"
            yield SettingGroup(origin, ((("mcp_servers", name), entry),), note=note)


def plan_settings(
    proposals: Proposals, ours: dict[str, Any], environment: Mapping[str, str], home: Path, file: Path
) -> Iterator[ImportStep]:
    """`ours` is config.yaml before the import, `file` its name in sentences."""
    draft, taken = copy.deepcopy(ours), set[str]()
    for one in proposals:
        if isinstance(one, ImportStep):
            yield one
            continue
        if one.needs and one.needs not in taken:
            yield make_left_step("setting", one.origin, f"{one.needs}, to which it belongs, is not taken")
            continue
        missing = _lacking(ours, one)
        if not missing:
            taken.add(one.origin)
            yield make_present_step("setting", one.origin)
            continue
        changed = _with(draft, one)
        others = (*(key for key, _ in missing), *one.unless)
        kept = next((key for key in others if _look_up(ours, key) is not None), None)
        if kept is not None:
            yield make_left_step("setting", one.origin, f"Talaria's {'.'.join(kept)} is set, and stays")
        elif problem := _find_problem(changed, environment, file):
            yield make_left_step("setting", one.origin, problem)
        else:
            taken.add(one.origin)
            news, draft = _lacking(draft, one), changed
            yield make_taken_step("setting", one.origin, lambda news=news: _write(news, home), one.note)


def _lacking(document: Document, group: SettingGroup) -> list[tuple[Key, Any]]:
    """The settings of the group that the document does not have. A mapping may have more than the group wants."""
    missing: list[tuple[Key, Any]] = []
    for key, value in group.settings:
        found: Any = _look_up(document, key)
        if isinstance(found, Mapping) and isinstance(value, Mapping):
            inner, wanted = cast("Document", found), cast("Document", value)
            is_same = all(inner.get(name) == one for name, one in wanted.items())
        else:
            is_same = bool(found == value)
        if not is_same:
            missing.append((key, cast("Any", value)))
    return missing


def _find_problem(document: dict[str, Any], environment: Mapping[str, str], file: Path) -> str | None:
    """What would keep every conversation from starting; keys may still come."""
    keys = {name: "any" for facts in catalog().values() for name in facts.keys}
    try:
        config = decode(expand(document, environment, file), file)
        choice = selection.choose(config, environment) or selection.ModelChoice(next(iter(catalog())))
        if choice.provider != selection.DEMO:
            endpoint = selection.endpoint(choice, config, {**keys, **environment})
            routes.plan(endpoint, config, {**keys, **environment})
    except MissingCredential:
        return None
    except TalariaError as refusal:
        return str(refusal).removeprefix(f"{file}: ")
    return None


def _look_up(document: Document, key: Key) -> Any:
    value: Any = document
    for name in key:
        value = cast("Document", value).get(name) if isinstance(value, Mapping) else None
    return value


def _with(document: dict[str, Any], group: SettingGroup) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    for key, value in group.settings:
        inner = changed
        for name in key[:-1]:
            if not isinstance(inner.get(name), dict):
                inner[name] = {}
            inner = inner[name]
        inner[key[-1]] = value
    return changed


def _write(settings: Iterable[tuple[Key, Any]], home: Path) -> None:
    for key, value in settings:
        set_value(home, ".".join(key), json.dumps(value, ensure_ascii=False))
