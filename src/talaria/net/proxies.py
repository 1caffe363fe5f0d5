"""Which proxy the environment names for an address (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`)."""

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from talaria.core.errors import BadConfig


def proxy_for(url: str) -> str | None:
    """Raises `BadConfig` for a proxy that we cannot use: going around it might not be what its owner wants."""
    parts = urlsplit(url)
    proxies = getproxies()
    if not proxies or proxy_bypass(parts.netloc):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy.startswith(("http://", "https://")):
        name = f"{parts.scheme}_proxy" if parts.scheme in proxies else "all_proxy"
        raise BadConfig(f"{name.upper()} is no proxy that can be used: it must have the form http://host:port.")
    return proxy
