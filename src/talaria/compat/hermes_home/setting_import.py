"""Hermes' config.yaml → settings of ours. One is taken if we have none, know it, and still start with it. Pure."""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from talaria.compat.hermes_home import model_settings
from talaria.compat.hermes_home.report import ImportStep, make_left_step, make_taken_step, there
from talaria.compat.hermes_home.wishes import (
    NO_COUNTERPART,
    Document,
    Key,
    Permissions,
    SettingGroup,
    Wishes,
    section,
    wish,
    word,
)
from talaria.config import routes, selection
from talaria.config.edit import set_value
from talaria.config.load import decode, expand
from talaria.config.schema import Config
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
"""Settings that mean the same, under their name and ours."""
_USUAL = {"context.engine": "compressor", "memory.provider": "builtin"}
"""What both have if nothing is said; anything else is a plugin's."""
_PERMISSIONS = {
    "plugins.entries": "it says what plugins may do, which is yours to say anew",
    "approvals": "it says what is asked about, which is yours to say anew",
    "terminal.backend": "commands run in a sandbox here; see terminal.backend in the settings",
}
_OF_SERVERS = ("command", "args", "env", "cwd", "enabled", "timeout", "connect_timeout", "tools")
_TOLD_ELSEWHERE = frozenset(
    {
        *("model", "provider", "base_url", "api_base", "context_length", "providers", "custom_providers"),
        *("fallback_providers", "fallback_model", "auxiliary", "mcp_servers", "plugins.enabled", "_config_version"),
    }
)


def wishes(document: Document, may: Permissions) -> Wishes:
    """In the order in which they must be granted."""
    own = model_settings.own_providers(document)
    return [
        *model_settings.model_wishes(document, own, may),
        *model_settings.provider_wishes(document, may),
        *model_settings.fallback_wishes(document, own, may),
        *model_settings.auxiliary_wishes(document, own),
        *_same(document),
        *_servers(document),
        *_rest(document),
    ]


def _same(document: Document) -> Iterator[SettingGroup]:
    for theirs, ours in _SAME.items():
        group, _, name = theirs.partition(".")
        value = section(document, group).get(name)
        if value not in (None, "", []) and word(value) != _USUAL.get(theirs):
            note = f"it works once you have installed and enabled the plugin {value}" if theirs in _USUAL else ""
            yield wish(theirs, ours, value, note=note)


def _servers(document: Document) -> Iterator[SettingGroup | ImportStep]:
    """Those that are started here: they run in the sandbox. What may be secret in one is not copied."""
    servers = section(document, "mcp_servers")
    for name in map(str, servers):
        given, origin = section(servers, name), f"mcp_servers.{name}"
        entry = {key: given[key] for key in _OF_SERVERS if given.get(key) not in (None, [], {})}
        if "command" not in entry or not re.fullmatch(r"[\w-]+", name):
            yield make_left_step("setting", origin, "adding a server is trusting it: talaria mcp add")
        elif any(not re.fullmatch(r"\$\{\w+\}", str(value)) for value in section(given, "env").values()):
            yield make_left_step("setting", origin, "its env holds what may be secret: talaria mcp add")
        else:
            note = f"it runs in the sandbox and reaches no host; to change that: talaria mcp sandbox {name}"
            yield SettingGroup(origin, ((("mcp_servers", name), entry),), note=note)


def _rest(document: Document) -> Iterator[ImportStep]:
    """All that is said and not told elsewhere, as deep as we look into it."""
    for key, value in _spread(document):
        if value not in (None, "", [], {}) and key not in _TOLD_ELSEWHERE and key not in _SAME:
            yield make_left_step("setting", key, _PERMISSIONS.get(key, NO_COUNTERPART))


def _spread(document: Document) -> Iterator[tuple[str, Any]]:
    """Sections of which we take something are told setting by setting."""
    groups = {theirs.partition(".")[0] for theirs in _SAME} - {"model"}
    for name, value in document.items():
        if name in groups:
            yield from ((f"{name}.{key}", inner) for key, inner in section(document, name).items())
        else:
            yield str(name), value


def setting_steps(
    told: Wishes, ours: dict[str, Any], environment: Mapping[str, str], home: Path, file: Path
) -> Iterator[ImportStep]:
    """`ours` is config.yaml as it stands, `file` its name in sentences."""
    draft, granted = copy.deepcopy(ours), set[str]()
    for one in told:
        if isinstance(one, ImportStep):
            yield one
        elif one.needs and one.needs not in granted:
            yield make_left_step("setting", one.origin, f"{one.needs}, to which it belongs, is not taken")
        elif not _lacking(ours, one):
            granted.add(one.origin)
            yield there("setting", one.origin)
        elif refusal := _refusal(ours, one) or _problem(_with(draft, one), environment, file):
            yield make_left_step("setting", one.origin, refusal)
        else:
            granted.add(one.origin)
            news, draft = _lacking(draft, one), _with(draft, one)
            yield make_taken_step("setting", one.origin, lambda news=news: _write(news, home), one.note)


def _lacking(document: Document, wish: SettingGroup) -> list[tuple[Key, Any]]:
    """What of the wish the document does not say."""
    return [(key, value) for key, value in wish.settings if not _says(_look_up(document, key), value)]


def _says(found: Any, value: Any) -> bool:
    """Of several settings, all that are wished; there may be more."""
    if isinstance(found, Mapping) and isinstance(value, Mapping):
        inner = cast("Document", found)
        return all(inner.get(name) == one for name, one in cast("Document", value).items())
    return bool(found == value)


def _refusal(ours: Document, wish: SettingGroup) -> str | None:
    others = (key for key, _ in _lacking(ours, wish))
    stays = next((key for key in (*others, *wish.unless) if _look_up(ours, key) is not None), None)
    return f"Talaria's {'.'.join(stays)} is set, and stays" if stays else None


def _problem(document: dict[str, Any], environment: Mapping[str, str], file: Path) -> str | None:
    try:
        config = decode(expand(document, environment, file), file)
        _start(config, environment)
    except TalariaError as refusal:
        return str(refusal).removeprefix(f"{file}: ")
    return None


def _start(config: Config, environment: Mapping[str, str]) -> None:
    """Raises what would keep every conversation from beginning; keys may still come."""
    keys = {name: "any" for facts in catalog().values() for name in facts.keys}
    choice = selection.choose(config, environment) or selection.ModelChoice(next(iter(catalog())))
    if choice.provider == selection.DEMO:
        return
    try:
        routes.plan(selection.endpoint(choice, config, {**keys, **environment}), config, {**keys, **environment})
    except MissingCredential:
        return


def _look_up(document: Document, key: Key) -> Any:
    value: Any = document
    for name in key:
        value = cast("Document", value).get(name) if isinstance(value, Mapping) else None
    return value


def _with(document: dict[str, Any], wish: SettingGroup) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    for key, value in wish.settings:
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
