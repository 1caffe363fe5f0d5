"""A route: the endpoint that is meant, and those that stand in for it. A value: walking it changes nothing."""

import msgspec

from talaria.providers.base import Endpoint


class Route(msgspec.Struct, frozen=True):
    primary: Endpoint
    fallbacks: tuple[Endpoint, ...] = ()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """In the order in which they are tried, each model at each address once."""
        found: dict[str, Endpoint] = {}
        for endpoint in (self.primary, *self.fallbacks):
            found.setdefault(endpoint.origin, endpoint)
        return tuple(found.values())
