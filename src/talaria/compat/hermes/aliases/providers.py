"""`providers`: model providers that plugins describe."""

from talaria.compat.hermes.bound import require_bound
from talaria.plugins.registered import OMIT_TEMPERATURE, ProviderProfile

__all__ = ["OMIT_TEMPERATURE", "ProviderProfile", "get_provider_profile", "list_providers", "register_provider"]


def register_provider(profile: ProviderProfile) -> None:
    """The last one of a name counts."""
    require_bound().providers[profile.name] = profile


def get_provider_profile(name: str) -> ProviderProfile | None:
    """By name, or by another name that it answers to; only of those that plugins have registered."""
    known = require_bound().providers
    return known.get(name) or next((one for one in known.values() if name in one.aliases), None)


def list_providers() -> list[ProviderProfile]:
    return list(require_bound().providers.values())
