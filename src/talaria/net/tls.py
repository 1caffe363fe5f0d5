"""The process's one TLS context: the system's certificates, or those of `SSL_CERT_FILE`."""

import ssl
from collections.abc import Generator
from contextlib import contextmanager

_READS = "set_default_verify_paths"


def make_tls_context() -> ssl.SSLContext:
    """Reads the certificates: 20 ms, for a thread."""
    made = ssl.create_default_context()
    made.set_alpn_protocols(["http/1.1"])
    return made


@contextmanager
def skip_certificates() -> Generator[None]:
    """While aiohttp is imported: it would read all certificates twice, 40 ms, for contexts that we
    do not use.

    Those contexts trust nobody afterwards, so that using one by mistake fails.
    """
    own = vars(ssl.SSLContext).get(_READS)  # inherited in CPython so far: then there is nothing to put back

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
