"""TLS of whoever calls a node: whose certificates are believed, and the certificate to show, if any.

For the SDK, the command line, and nodes that pass requests on. What a node serves is in `coordinator.http.tls`.
"""

from __future__ import annotations

import ssl
from os import PathLike

Place = str | PathLike[str]


class TrustError(ValueError):
    """Files that cannot be used, in one sentence that names them and never shows what is in them."""


def client_context(ca: Place | None = None, cert: Place | None = None, key: Place | None = None) -> ssl.SSLContext:
    """Believes `ca` (a PEM file; without it the system's authorities), and shows `cert` with its `key` when asked."""
    if key is not None and cert is None:
        raise TrustError(f"the key {key} is of no use without its certificate; name that too")
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise TrustError(f"the authority {ca} cannot be used: {error.strerror or error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except OSError as error:
            of = f"{cert} with the key {key}" if key is not None else str(cert)
            raise TrustError(f"the certificate {of} cannot be used: {error.strerror or error}") from None
    return context


def _no_password() -> str:
    """OpenSSL would ask at the terminal, also in a program that has none."""
    raise TrustError("the private key is encrypted: store it without a password")
