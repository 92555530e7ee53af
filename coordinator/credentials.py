"""What a node proves itself with, as its configuration names it: the cluster's secret, certificate, key, authority.

Read when the node starts and again when it is told that they changed. Files that others could read are refused.
"""

from __future__ import annotations

import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from cluster.tls import load_identity
from coordinator.tokens import root_digest

SECRET_BYTES_MIN = 16
CLIENT_MODES = ("tls", "certificate", "off")
"""How HTTP and gRPC are served when there is a certificate: with TLS; only to clients with a certificate of their own;
plainly, for a proxy on this host that speaks TLS itself."""

TLS_KEYS: dict[str, type] = {"cert": str, "key": str, "ca": str, "clients": str}
_FILES = ("cert", "key", "ca")


class ConfigError(ValueError):
    """A configuration that cannot work, in one sentence with the fix."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate and private key of the node, and the authority whose certificates it believes: all PEM."""

    cert: Path
    key: Path
    ca: Path
    clients: Literal["tls", "certificate", "off"] = "tls"

    def serving(self) -> ssl.SSLContext:
        """For a port of HTTP: TLS 1.2 at least. A client may show a certificate of the authority, or must."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A resumed session would outlive its certificate.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        context.verify_mode = ssl.CERT_REQUIRED if self.clients == "certificate" else ssl.CERT_OPTIONAL
        load_identity(context, str(self.cert), str(self.key), str(self.ca))
        return context

    @property
    def stamp(self) -> tuple[tuple[int, ...], ...]:
        """Differs when any of them was written or replaced; a file that is gone just now counts as one that differs."""
        return tuple(_stamp(path) for path in (self.cert, self.key, self.ca))


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_tls(table: Mapping[str, Any], directory: Path) -> TlsFiles | None:
    if not table:
        return None
    missing = [name for name in _FILES if name not in table]
    if missing:
        raise ConfigError(
            f"tls.{missing[0]} is missing; [tls] needs cert, key and ca together, which `holdfast certs` makes"
        )
    clients = table.get("clients", "tls")
    if clients not in CLIENT_MODES:
        raise ConfigError(f"tls.clients {clients!r} must be one of {', '.join(CLIENT_MODES)}")
    cert, key, ca = (directory / table[name] for name in _FILES)
    files = TlsFiles(cert, key, ca, cast(Any, clients))
    for name in _FILES:
        if not getattr(files, name).is_file():
            raise ConfigError(f"tls.{name} names {getattr(files, name)}, which is not a file")
    refuse_open("tls.key", files.key)
    return files


def read_secret(root: Mapping[str, Any], directory: Path) -> bytes:
    if "secret" in root and "secret_file" in root:
        raise ConfigError("secret and secret_file are both given; keep one")
    if "secret_file" in root:
        return _long_enough("secret_file", read_private("secret_file", directory / root["secret_file"]))
    if "secret" in root:
        return _long_enough("secret", root["secret"].encode())
    raise ConfigError("secret_file is missing; make one with `openssl rand -hex 32` and copy it to every node")


def read_previous_secret(root: Mapping[str, Any], directory: Path) -> bytes | None:
    """The one before, while a new one is brought to the nodes."""
    name = "previous_secret_file"
    return _long_enough(name, read_private(name, directory / root[name])) if name in root else None


def read_root_token(root: Mapping[str, Any], directory: Path) -> bytes | None:
    """The digest of the first administrator's access token."""
    name = "root_token_file"
    if name not in root:
        return None
    digest = root_digest(read_private(name, directory / root[name]).decode(errors="replace"))
    if digest is None:
        message = f"{name} holds no root token; make one with `holdfast token root FILE` and copy it to every node"
        raise ConfigError(message)
    return digest


def _long_enough(name: str, secret: bytes) -> bytes:
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"{name} holds {len(secret)} bytes and needs at least {SECRET_BYTES_MIN}; `openssl rand -hex 32` makes one"
        )
    return secret


def read_private(name: str, path: Path) -> bytes:
    """What a file holds that nobody else may read."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{name} {path} cannot be read: {error.strerror or error}") from None
    refuse_open(name, path)
    return secret


def refuse_open(name: str, path: Path) -> None:
    """What must stay secret may be readable by its owner only."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(f"{name} {path} can be read by others (mode {mode:04o}); chmod 600 it")
