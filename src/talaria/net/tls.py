"""The process's one TLS context: the system's certificates, or those of `SSL_CERT_FILE`."""

import ssl
from collections.abc import Generator
from contextlib import contextmanager

_READS = "set_default_verify_paths"


def make_tls_context() -> ssl.SSLContext:
    """Reads the certificates, which takes 20 ms: call it in a thread."""
    made = ssl.create_default_context()
    made.set_alpn_protocols(["http/1.1"])
    return made


@contextmanager
def skip_certificates() -> Generator[None]:
    """For the import of aiohttp, which would read all certificates twice (40 ms) for contexts that we do not use.

    Those contexts then trust nobody, so using one by mistake fails.
    """
    own = vars(ssl.SSLContext).get(_READS)  # CPython inherits it so far: then there is nothing to restore

    def read_nothing(_: ssl.SSLContext) -> None:
        return None

    setattr(ssl.SSLContext, _READS, read_nothing)
    try:
        yield
    finally:
        if own is None:
            delattr(ssl.SSLContext, _READS)
        else:
            setattr(ssl.SSLContext, _READS, own)
