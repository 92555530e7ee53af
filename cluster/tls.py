"""Certificates of the peer links: TLS 1.3 only, both sides show one, and it must name the node that claims to speak.

TLS is an addition to the shared secret, not instead of it: the hand-shake of `cluster.handshake` runs inside. What is
wrong with a certificate is told as a code and a sentence, for the log of the side that saw it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from cluster.options import OptionsError


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
        load_identity(context, cert, key, ca)
    return server, client


def load_identity(context: ssl.SSLContext, cert: str, key: str, ca: str) -> None:
    """OptionsError, which says which file and never what is in it, if they cannot be used."""
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except OSError as error:
        raise OptionsError(f"the certificate {cert} with the key {key} cannot be used: {_reason(error)}") from None
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise OptionsError(f"the authority {ca} cannot be used: {_reason(error)}") from None


def _no_password() -> str:
    """OpenSSL would ask at the terminal, and the node would wait there for ever."""
    raise OptionsError("the private key is encrypted and nobody is there to be asked: store it without a password")


def _reason(error: OSError) -> str:
    known = {
        "KEY_VALUES_MISMATCH": "the key is not that of the certificate; copy the two files of one issue",
        "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in it",
    }
    return known.get(getattr(error, "reason", None) or "", error.strerror or str(error))


_REFUSALS = (
    (
        "tls_expired",
        "the certificate is past its time, or not valid yet: issue a new one with `holdfast certs node`, and compare "
        "the clocks of the two hosts",
        ("CERTIFICATE_EXPIRED", "has expired", "not yet valid"),
    ),
    (
        "tls_certificate",
        "no certificate was shown, or one for another use: give every node its own with `holdfast certs node`",
        (
            "DID_NOT_RETURN_A_CERTIFICATE",
            "CERTIFICATE_REQUIRED",
            "BAD_CERTIFICATE",
            "UNSUPPORTED_CERTIFICATE",
            "purpose",
        ),
    ),
    (
        "tls_version",
        "one side knows no TLS 1.3, which is the least that peers speak",
        ("UNSUPPORTED_PROTOCOL", "PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE", "INAPPROPRIATE_FALLBACK"),
    ),
    (
        "tls_mismatch",
        "what arrived is no TLS: one side has [tls] and the other not, or something else uses this port",
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "RECORD_LAYER", "PACKET_LENGTH"),
    ),
    (
        "tls_untrusted",
        "the certificate is of no authority in tls.ca: issue it by the cluster's own, or add its authority to tls.ca",
        ("CERTIFICATE_VERIFY_FAILED", "UNKNOWN_CA"),
    ),
)


def tls_refusal(error: BaseException) -> tuple[str, str]:
    """(code, what is wrong and the fix, with OpenSSL's own words) for a TLS hand-shake that failed."""
    said = str(error) or type(error).__name__
    for code, advice, words in _REFUSALS:
        if any(word in said for word in words):
            return code, f"{advice} ({said})"
    return "tls_failed", f"the TLS hand-shake broke off; the log of the other side may say why ({said})"
