"""Who a certificate is of: a client that an operator named, or a node of the cluster. Pure: OpenSSL has verified it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote

CLIENT_URI = "urn:holdfast:client:"
"""A subjectAltName of this kind is the identity; the rest of the certificate says nothing about it."""
IDENTITY = re.compile(r"[A-Za-z0-9._@:/+-]{1,64}")

Certificate = Mapping[str, object] | None
"""As `ssl` presents it (`getpeercert`, `get_extra_info("peercert")`): empty or None when none was shown."""


def identity_uri(identity: str) -> str:
    return CLIENT_URI + quote(identity, safe="")


def identity_of(certificate: Certificate) -> str | None:
    """The client a certificate names; None for none, for a node's, and for one that names two or something odd."""
    named = [name for kind, name in _names(certificate) if kind == "URI" and name.startswith(CLIENT_URI)]
    if len(named) != 1:
        return None
    identity = unquote(named[0].removeprefix(CLIENT_URI))
    return identity if IDENTITY.fullmatch(identity) else None


def is_node(certificate: Certificate, cluster_id: str) -> bool:
    """Whether it is that of some node of this cluster (`cluster.tls.certificate_name`)."""
    end = f".{cluster_id.replace('.', '%2E')}.holdfast"
    return any(
        kind == "DNS" and name.endswith(end) and "." not in name.removesuffix(end) for kind, name in _names(certificate)
    )


def _names(certificate: Certificate) -> Iterator[tuple[str, str]]:
    names = (certificate or {}).get("subjectAltName", ())
    for each in names if isinstance(names, tuple) else ():
        match each:
            case (str(kind), str(name)):
                yield kind, name
