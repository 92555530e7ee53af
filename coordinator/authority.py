"""A cluster's own certificate authority: makes it, issues certificates of nodes and clients, and reads any of them.

A directory holds `ca.pem` and `ca.key`, and what was issued. The authority's subject says which cluster it is of, and
its certificates are for that one unless another is named, as after a restore, which makes a cluster of a new id. Keys
are written for their owner only, and nothing is overwritten unless it is to be renewed.
"""

from __future__ import annotations

import datetime
import fcntl
import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster.options import ClusterOptions, OptionsError
from cluster.tls import certificate_name
from coordinator.http.identity import CLIENT_URI, IDENTITY, identity_of, identity_uri

DAYS_MAX = 36_500
_NODE_NAMES = ".holdfast"
_SKEW = datetime.timedelta(hours=1)
"""A certificate is valid a little before it is made: the clocks of two hosts differ."""
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


class AuthorityError(ValueError):
    """Nothing was made, in one sentence with the fix."""


@dataclass(frozen=True, slots=True)
class Issued:
    """The files of one certificate and its key."""

    certificate: Path
    key: Path
    expires: datetime.datetime


# --- the authority ----------------------------------------------------------------------------------------------------


class Authority:
    def __init__(self, directory: Path) -> None:
        """The one in `directory`."""
        self.directory = directory
        try:
            self._certificate = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
            key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
        except OSError as error:
            raise AuthorityError(
                f"there is no authority in {directory} ({error.filename}: {error.strerror}); "
                "make one with `holdfast certs init`, or say --dir"
            ) from None
        except (ValueError, TypeError):
            raise AuthorityError(
                f"ca.pem or ca.key in {directory} is not what `holdfast certs init` made; restore them from your backup"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise AuthorityError(
                f"ca.key in {directory} is not the key of ca.pem; restore the two that belong together"
            )
        self._key = key
        self.cluster_id = _subject(self._certificate, NameOID.ORGANIZATION_NAME)

    @classmethod
    def make(cls, directory: Path, cluster_id: str, days: int) -> Authority:
        _check_name("n", cluster_id)
        key = ec.generate_private_key(ec.SECP256R1())
        # The day tells two authorities of one cluster apart, as there are while one replaces the other.
        name = _name(f"Holdfast authority {_now():%Y-%m-%d %H:%M:%S}", cluster_id)
        usage = {"key_cert_sign": True, "crl_sign": True}
        built = (
            _builder(name, name, key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(**usage), critical=True)
        )
        _write_pair(directory, "ca", built.sign(key, hashes.SHA256()), key, renew=False)
        return cls(directory)

    def node(
        self, node_id: str, hosts: Sequence[str], days: int, directory: Path, *, renew: bool, cluster_id: str = ""
    ) -> Issued:
        """For a node that peers and clients reach under `hosts`: names or addresses."""
        cluster_id = cluster_id or self.cluster_id
        _check_name(node_id, cluster_id)
        names: list[x509.GeneralName] = [x509.DNSName(certificate_name(node_id, cluster_id))]
        names += [_general_name(host) for host in dict.fromkeys(hosts)]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        subject = _name(node_id, cluster_id)
        return self._issue(f"node-{node_id}", subject, names, uses, days, directory, renew=renew)

    def client(self, identity: str, days: int, directory: Path, *, renew: bool) -> Issued:
        if not IDENTITY.fullmatch(identity):
            raise AuthorityError(f"identity {identity!r} must be 1-64 letters, digits, or any of . _ @ : / + -")
        file = f"client-{quote(identity, safe='@+')}"
        names = [x509.UniformResourceIdentifier(identity_uri(identity))]
        subject = _name(identity, self.cluster_id)
        return self._issue(file, subject, names, [ExtendedKeyUsageOID.CLIENT_AUTH], days, directory, renew=renew)

    def _issue(
        self,
        file: str,
        subject: x509.Name,
        names: Sequence[x509.GeneralName],
        uses: Sequence[x509.ObjectIdentifier],
        days: int,
        directory: Path,
        *,
        renew: bool,
    ) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(subject, self._certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(issuer_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        if certificate.not_valid_after_utc > self._certificate.not_valid_after_utc:
            left = (self._certificate.not_valid_after_utc - _now()).days
            raise AuthorityError(
                f"the authority itself ends in {left} days; say --days {max(left, 1)}, or make a new one"
            )
        return _write_pair(directory, file, certificate, key, renew=renew)


# --- what a certificate says ------------------------------------------------------------------------------------------


def described(path: Path) -> list[dict[str, Any]]:
    """Every certificate in a PEM file: one, or those of a bundle."""
    with _reading(path):
        return [_described(path, each) for each in x509.load_pem_x509_certificates(path.read_bytes())]


def first_end_s(path: Path) -> float:
    """When the first of the certificates in a PEM file ends, in seconds since 1970."""
    with _reading(path):
        found = x509.load_pem_x509_certificates(path.read_bytes())
        return min(each.not_valid_after_utc.timestamp() for each in found)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AuthorityError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise AuthorityError(f"{path} holds no certificate in PEM form; keys are not shown") from None


def _described(path: Path, certificate: x509.Certificate) -> dict[str, Any]:
    names = _alternative_names(certificate)
    left = certificate.not_valid_after_utc - _now()
    return {
        "file": str(path),
        "kind": _kind(certificate, names),
        "name": _subject(certificate, NameOID.COMMON_NAME),
        "cluster_id": _subject(certificate, NameOID.ORGANIZATION_NAME),
        "identity": identity_of({"subjectAltName": tuple(("URI", name) for name in names)}),
        "names": names,
        "issuer": _subject(certificate, NameOID.COMMON_NAME, issuer=True),
        "not_before": certificate.not_valid_before_utc.isoformat(),
        "not_after": certificate.not_valid_after_utc.isoformat(),
        "days_left": left.days,
        "expired": left.total_seconds() <= 0,
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def _kind(certificate: x509.Certificate, names: Sequence[str]) -> str:
    try:
        if certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return "authority"
    except x509.ExtensionNotFound:
        pass
    if any(name.startswith(CLIENT_URI) for name in names):
        return "client"
    return "node" if any(name.endswith(_NODE_NAMES) for name in names) else "other"


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(each.value) for each in found]


def _subject(certificate: x509.Certificate, kind: x509.ObjectIdentifier, *, issuer: bool = False) -> str:
    found = (certificate.issuer if issuer else certificate.subject).get_attributes_for_oid(kind)
    return str(found[0].value) if found else ""


# --- building and writing ---------------------------------------------------------------------------------------------


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _check_name(node_id: str, cluster_id: str) -> None:
    """By the rule that a node's own configuration is held to."""
    try:
        ClusterOptions(node_id, cluster_id, ".").check()
    except OptionsError as error:
        raise AuthorityError(str(error)) from None
    if not (node_id + cluster_id).isascii():
        raise AuthorityError("a name in a certificate is ASCII: give the node or the cluster an id that is")


def _name(common: str, cluster_id: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster_id),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if len(host) > 253 or not all(map(_LABEL.fullmatch, host.split("."))):
            raise AuthorityError(f"--host {host!r} is no host name and no address; leave the port out") from None
        if host.endswith(_NODE_NAMES):
            raise AuthorityError(f"--host {host!r} is the name of a node: the node's own is added by itself") from None
        return x509.DNSName(host)


def _key_usage(**used: bool) -> x509.KeyUsage:
    kinds = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{kind: used.get(kind, False) for kind in kinds})


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> Any:
    if not 1 <= days <= DAYS_MAX:
        raise AuthorityError(f"--days {days} is not from 1 to {DAYS_MAX}")
    now = _now()
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _write_pair(
    directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, *, renew: bool
) -> Issued:
    issued = Issued(directory / f"{name}.pem", directory / f"{name}.key", certificate.not_valid_after_utc)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _alone_in(directory):
            there = [path for path in (issued.certificate, issued.key) if path.exists()]
            if there and not renew:
                again = "choose another --dir" if name == "ca" else "say --renew to replace it, or choose another --out"
                raise AuthorityError(f"{there[0]} is there already and is not overwritten; {again}")
            _replace((issued.key, private, 0o600), (issued.certificate, public, 0o644))
    except OSError as error:
        raise AuthorityError(f"cannot write to {directory}: {error.strerror}; choose another directory") from None
    return issued


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Whoever would write a pair there at the same time is refused, so that no key is left with another's certificate.
    What was written is durable at the end."""
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AuthorityError(f"another process writes certificates to {directory} now; try again") from None
        yield
        os.fsync(held)
    finally:
        os.close(held)


def _replace(*files: tuple[Path, bytes, int]) -> None:
    """All are durable before the first gets its name, so that a full disk leaves the old ones. Each comes whole or not
    at all; a node that looks between two of them waits for the other."""
    temporaries = [path.with_name(f".{path.name}.{os.getpid()}.tmp") for path, _, _ in files]
    try:
        for temporary, (_, content, mode) in zip(temporaries, files, strict=True):
            temporary.unlink(missing_ok=True)  # of a process that was killed
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for temporary, (path, _, _) in zip(temporaries, files, strict=True):
            os.replace(temporary, path)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)
