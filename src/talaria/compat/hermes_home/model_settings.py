"""Models and providers in Hermes' config.yaml → ours. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from talaria.compat.hermes_home.report import (
    NO_COUNTERPART,
    Document,
    Key,
    Permissions,
    Proposals,
    SettingGroup,
    first,
    make_left_step,
    propose,
    section,
    word,
)
from talaria.plugins.registered import WIRES
from talaria.providers.catalog import catalog

IDENTITY: tuple[Key, ...] = (("model", "default"), ("model", "provider"), ("model", "base_url"))
_NAMES = {
    **dict.fromkeys(("openai-api",), "openai"),
    **dict.fromkeys(("nous-api",), "nous"),
    **dict.fromkeys(("claude", "claude-code"), "anthropic"),
    **dict.fromkeys(("google", "google-gemini", "google-ai-studio"), "gemini"),
    **dict.fromkeys(("x-ai", "x.ai", "grok"), "xai"),
    **dict.fromkeys(("z-ai", "z.ai", "glm", "zhipu"), "zai"),
    **dict.fromkeys(("lm-studio", "lm_studio"), "lmstudio"),
    **dict.fromkeys(("llamacpp", "llama-cpp"), "llama.cpp"),
}
_RESERVED = ("custom", "demo", "auto")
_ENTRY_NAMES = frozenset(
    {
        *("name", "api", "url", "base_url", "api_key", "key_env", "api_key_env", "key_cmd", "api_mode", "transport"),
        *("model", "default_model", "models", "context_length", "extra_headers"),
    }
)
"""The settings of a provider that are read here."""
_MODEL_NAMES = frozenset(
    {
        *("default", "model", "name", "provider", "base_url", "api_base", "api_mode", "api_key", "key_env"),
        *("api_key_env", "context_length", "max_tokens", "streaming"),
    }
)
_HELPERS = {"title_generation": "title", "compression": "summary", "approval": "judge"}


def locate_provider(said: Document, own: Collection[str]) -> tuple[str, str]:
    """Our provider and address for what `said` says about them; empty where ours is the usual one."""
    provider = provider_name(first(said, "provider"), own)
    base_url = first(said, "base_url", "api_base", "url").rstrip("/")
    try:
        host = urlsplit(base_url).hostname
    except ValueError:
        host = None
    at_home = next(
        (facts.name for facts in catalog().values() if host and urlsplit(facts.base_url).hostname == host), ""
    )
    if not provider and base_url:
        provider = at_home if at_home and not catalog()[at_home].is_local else "custom"
    facts = catalog().get(provider)
    is_usual = facts is not None and facts.base_url == base_url
    is_of_another = at_home not in ("", provider) and not catalog()[at_home].is_local and provider != "custom"
    return provider, "" if is_usual or is_of_another else base_url


def provider_name(said: str, own: Collection[str]) -> str:
    """Empty: any provider that has a key."""
    name = said.lower().removeprefix("custom:")
    if name in ("", "auto", "main"):
        return ""
    return slug(name) if slug(name) in own else _NAMES.get(name, name)


def slug(name: str) -> str:
    """A name that can be used before a colon, and in the path of a setting."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"hermes-{plain}" if plain in _RESERVED else plain


def to_vendor_name(provider: str, model: str) -> str:
    """Vendors call their own models without the vendor's name."""
    if provider == "anthropic":
        return model.removeprefix("anthropic/").replace(".", "-")
    return model.removeprefix("openai/") if provider == "openai" else model


def own_providers(document: Document) -> dict[str, Document]:
    """By our name for it, from the new form and the old one."""
    found: dict[str, Document] = {}
    for name, entry in section(document, "providers").items():
        if isinstance(entry, Mapping) and slug(str(name)):
            found[slug(str(name))] = cast("Document", entry)
    for entry in entries(document.get("custom_providers")):
        if name := slug(first(entry, "name")):
            found.setdefault(name, entry)
    return found


def entries(value: object) -> list[Document]:
    """One or several: Hermes accepts both."""
    several = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]
    return [cast("Document", entry) for entry in several if isinstance(entry, Mapping)]


def our_entry(entry: Document) -> dict[str, Any]:
    """Of its models only those whose context window is given: others need not be listed."""
    default = first(entry, "default_model", "model")
    listed = {str(name): entries(facts) for name, facts in section(entry, "models").items()}
    windows = {name: facts[0].get("context_length") for name, facts in listed.items() if facts}
    if default and entry.get("context_length"):
        windows.setdefault(default, entry["context_length"])
    values = {
        "base_url": first(entry, "base_url", "url", "api").rstrip("/"),
        "wire": WIRES.get(first(entry, "api_mode", "transport")),
        "default_model": default,
        "key_command": first(entry, "key_cmd"),
        "models": {name: {"context_length": window} for name, window in windows.items() if isinstance(window, int)},
    }
    return {name: value for name, value in values.items() if value}


def propose_providers(document: Document, may: Permissions) -> Proposals:
    for name, entry in own_providers(document).items():
        origin = f"providers.{name}"
        ours = our_entry(entry)
        if "base_url" not in ours:
            yield make_left_step("setting", origin, "it has no address, and the rest has no counterpart")
            continue
        key, refused = may.key_of(entry, origin)
        yield propose(origin, origin, ours)
        yield from refused
        if key:
            yield propose(f"{origin}.api_key", f"{origin}.api_key", key, needs=origin)
        headers = section(entry, "extra_headers")
        if headers and may.with_keys:
            yield propose(f"{origin}.extra_headers", f"{origin}.headers", dict(headers), needs=origin)
        elif headers:
            yield make_left_step("setting", f"{origin}.extra_headers", "they may contain a secret: --keys takes them")
        for rest in sorted(set(map(str, entry)) - _ENTRY_NAMES):
            yield make_left_step("setting", f"{origin}.{rest}", NO_COUNTERPART)


def propose_model(document: Document, own: Mapping[str, Document], may: Permissions) -> Proposals:
    """`own` are the providers in Hermes' config."""
    said = _read_model_section(document)
    provider, base_url = locate_provider(said, own)
    if not provider:  # the first that has a key, as in Hermes
        remote = (facts for facts in catalog().values() if not facts.is_local and facts.base_url)
        provider = next((facts.name for facts in remote if any(name in may.theirs for name in facts.keys)), "")
    values = {
        "default": to_vendor_name(provider, first(said, "default", "model", "name")),
        "provider": provider,
        "base_url": base_url,
        "wire": WIRES.get(first(said, "api_mode")) if base_url else None,
    }
    is_said = values["default"] or first(said, "provider") or base_url
    chosen: list[tuple[Key, Any]] = [(("model", name), value) for name, value in values.items() if value and is_said]
    entry = our_entry(own.get(provider, {}))
    if "base_url" in entry:  # neither makes sense without the other
        chosen.insert(0, (("providers", provider), entry))
    if chosen:
        yield SettingGroup("model", tuple(chosen), unless=IDENTITY)
    key, refused = may.key_of(said, "model")
    yield from refused
    details = {"context_length": said.get("context_length"), "max_tokens": said.get("max_tokens"), "api_key": key}
    for name, value in details.items():
        if value:
            yield propose(f"model.{name}", f"model.{name}", value, needs="model")
    for name in said:
        if name not in _MODEL_NAMES:
            yield make_left_step("setting", f"model.{name}", NO_COUNTERPART)
    given = first(said, "base_url", "api_base").rstrip("/")
    usual = catalog()[provider].base_url if provider in catalog() else ""
    if given and not base_url and given != usual:
        yield make_left_step("setting", "model.base_url", "the address of a different provider than the chosen one")


def _read_model_section(document: Document) -> dict[str, Any]:
    given = document.get("model")
    said: dict[str, Any] = {"default": given} if isinstance(given, str) else dict(section(document, "model"))
    for name in ("provider", "base_url", "api_base", "context_length"):  # where old versions kept them
        if said.get(name) is None and document.get(name) is not None:
            said[name] = document[name]
    return {str(name): value for name, value in said.items() if value not in (None, "", {}, [])}


def propose_fallbacks(document: Document, own: Collection[str], may: Permissions) -> Proposals:
    chosen: list[dict[str, str]] = []
    for name in ("fallback_providers", "fallback_model"):
        for entry in entries(document.get(name)):
            provider, base_url = locate_provider(entry, own)
            if provider not in (*catalog(), *own):
                yield make_left_step("setting", name, f"Talaria has no provider {provider or 'auto'!r}")
                continue
            key, refused = may.key_of(entry, name)
            yield from refused
            model = to_vendor_name(provider, first(entry, "model"))
            values = {"provider": provider, "model": model, "base_url": base_url, "api_key": key}
            fallback = {name: value for name, value in values.items() if value}
            if fallback not in chosen:
                chosen.append(fallback)
    if chosen:
        yield propose("fallback_providers", "fallback_providers", chosen)


def propose_auxiliary(document: Document, own: Collection[str]) -> Proposals:
    for name, given in section(document, "auxiliary").items():
        if not isinstance(given, Mapping):
            continue
        entry, origin = cast("Document", given), f"auxiliary.{name}"
        for key, value in entry.items():
            if key not in ("provider", "model", "base_url", "api_key") and value not in (None, "", {}, []):
                yield make_left_step("setting", f"{origin}.{key}", NO_COUNTERPART)
        model = word(entry.get("model"))
        if model and str(name) not in _HELPERS:
            yield make_left_step("setting", origin, "Talaria does not use an auxiliary model for this")
        elif model and word(entry.get("base_url")):
            yield make_left_step(
                "setting", origin, "it has its own address: add that under providers, and use provider:model"
            )
        elif model:
            provider = provider_name(first(entry, "provider"), own)
            value = f"{provider}:{to_vendor_name(provider, model)}" if provider else model
            yield propose(origin, f"auxiliary.{_HELPERS[str(name)]}", value)
