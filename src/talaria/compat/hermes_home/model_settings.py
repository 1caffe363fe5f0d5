"""Which models, as Hermes says it and as we do. Pure."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from talaria.compat.hermes_home.provider_settings import entries, located, named, our_entry, provider_name
from talaria.compat.hermes_home.report import ImportStep, left
from talaria.compat.hermes_home.wishes import (
    NO_COUNTERPART,
    Document,
    Key,
    Permissions,
    SettingGroup,
    Wishes,
    first,
    section,
    wish,
    word,
)
from talaria.plugins.model_providers import WIRES
from talaria.providers.catalog import catalog

IDENTITY: tuple[Key, ...] = (("model", "default"), ("model", "provider"), ("model", "base_url"))
_MODEL_NAMES = frozenset(
    {
        *("default", "model", "name", "provider", "base_url", "api_base", "api_mode", "api_key", "key_env"),
        *("api_key_env", "context_length", "max_tokens", "streaming"),
    }
)


def model_wishes(document: Document, own: Mapping[str, Document], may: Permissions) -> Wishes:
    """`own` are the providers that Hermes' config brings along."""
    said = _said_of_model(document)
    provider, base_url = located(said, own)
    provider = provider or _at_hand(may.theirs)
    values = {
        "default": named(provider, first(said, "default", "model", "name")),
        "provider": provider,
        "base_url": base_url,
        "wire": WIRES.get(first(said, "api_mode")) if base_url else None,
    }
    is_said = values["default"] or first(said, "provider") or base_url
    chosen: list[tuple[Key, Any]] = [(("model", name), value) for name, value in values.items() if value and is_said]
    entry = our_entry(own.get(provider, {}))
    if "base_url" in entry:  # neither makes sense without the other
        chosen.insert(0, (("providers", provider), entry))
    key, refused = may.key_of(said, "model")
    details = {"context_length": said.get("context_length"), "max_tokens": said.get("max_tokens"), "api_key": key}
    return [
        *([SettingGroup("model", tuple(chosen), unless=IDENTITY)] if chosen else []),
        *refused,
        *(wish(f"model.{name}", f"model.{name}", value, needs="model") for name, value in details.items() if value),
        *(left("setting", f"model.{name}", NO_COUNTERPART) for name in said if name not in _MODEL_NAMES),
        *_foreign_address(said, provider, base_url),
    ]


def _at_hand(names: Collection[str]) -> str:
    """Whom Hermes would ask when it is told to find out."""
    remote = (facts for facts in catalog().values() if not facts.is_local and facts.base_url)
    return next((facts.name for facts in remote if any(name in names for name in facts.keys)), "")


def _said_of_model(document: Document) -> dict[str, Any]:
    given = document.get("model")
    said: dict[str, Any] = {"default": given} if isinstance(given, str) else dict(section(document, "model"))
    for name in ("provider", "base_url", "api_base", "context_length"):  # old places
        if said.get(name) is None and document.get(name) is not None:
            said[name] = document[name]
    return {str(name): value for name, value in said.items() if value not in (None, "", {}, [])}


def _foreign_address(said: Document, provider: str, base_url: str) -> Iterator[ImportStep]:
    given = first(said, "base_url", "api_base").rstrip("/")
    usual = catalog()[provider].base_url if provider in catalog() else ""
    if given and not base_url and given != usual:
        yield left("setting", "model.base_url", "the address of another provider than the one that is chosen")


def fallback_wishes(document: Document, own: Collection[str], may: Permissions) -> Wishes:
    told: Wishes = []
    chosen: list[dict[str, str]] = []
    for name in ("fallback_providers", "fallback_model"):
        for entry in entries(document.get(name)):
            provider, base_url = located(entry, own)
            if provider not in (*catalog(), *own):
                told.append(left("setting", name, f"Talaria has no provider {provider or 'auto'!r}"))
                continue
            key, refused = may.key_of(entry, name)
            told.extend(refused)
            model = named(provider, first(entry, "model"))
            values = {"provider": provider, "model": model, "base_url": base_url, "api_key": key}
            fallback = {name: value for name, value in values.items() if value}
            chosen.extend([] if fallback in chosen else [fallback])
    return [*told, *([wish("fallback_providers", "fallback_providers", chosen)] if chosen else [])]


_HELPERS = {"title_generation": "title", "compression": "summary", "approval": "judge"}


def auxiliary_wishes(document: Document, own: Collection[str]) -> Wishes:
    return [
        told
        for name, entry in section(document, "auxiliary").items()
        if isinstance(entry, Mapping)
        for told in _helper(str(name), cast("Document", entry), own)
    ]


def _helper(name: str, entry: Document, own: Collection[str]) -> Iterator[SettingGroup | ImportStep]:
    origin, model = f"auxiliary.{name}", word(entry.get("model"))
    for key, value in entry.items():
        if key not in ("provider", "model", "base_url", "api_key") and value not in (None, "", {}, []):
            yield left("setting", f"{origin}.{key}", NO_COUNTERPART)
    if not model:
        return
    if name not in _HELPERS:
        yield left("setting", origin, "Talaria has no such auxiliary work")
    elif word(entry.get("base_url")):
        yield left("setting", origin, "an address of its own: add it under providers, and name it as provider:model")
    else:
        provider = provider_name(first(entry, "provider"), own)
        value = f"{provider}:{named(provider, model)}" if provider else model
        yield wish(origin, f"auxiliary.{_HELPERS[name]}", value)
