"""Certificates of the peer links: TLS 1.3 only, both sides show one, and it must name the node that claims to speak.

TLS is an addition to the shared secret, not instead of it: the hand-shake of `cluster.handshake` runs inside.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping


def certificate_name(node_id: str, cluster_id: str) -> str:
    """The DNS name (subjectAltName) that the certificate of a node must carry.

    A dot in an id is escaped: otherwise node `a.b` of cluster `c` and node `a` of cluster `b.c` would share a name.
    """
    node, cluster = (part.replace(".", "%2E") for part in (node_id, cluster_id))
    return f"{node}.{cluster}.holdfast"


def names_node(certificate: Mapping[str, object] | None, node_id: str, cluster_id: str) -> bool:
    """Whether a certificate, as `ssl` presents it after verifying, was issued to that node."""
    names = (certificate or {}).get("subjectAltName", ())
    return isinstance(names, tuple) and ("DNS", certificate_name(node_id, cluster_id)) in names


def peer_ssl_contexts(cert: str, key: str, ca: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(for accepting, for dialing) from three PEM files: own certificate, its key, and the CA that all nodes share.

    Host names are not compared, as nodes move between addresses: `names_node` checks the node instead.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.num_tickets = 0  # a resumed session would outlive its certificate
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(cert, key)
        context.load_verify_locations(ca)
    return server, client
