"""What a gossip node is told: a small TOML file, checked before anything starts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.addresses import AddressError, is_loopback, split_address
from coordinator.credentials import ConfigError, TlsFiles, read_tls, refuse_open
from coordinator.gossip.seal import SECRET_MIN_BYTES
from coordinator.gossip.tally import Implausible, check_node_id

ROUND_MS = 1000
_KINDS: dict[str, type] = {
    "node_id": str,
    "listen": str,
    "file": str,
    "secret_file": str,
    "peers": list,
    "round_ms": int,
    "tls": dict,
    "insecure": bool,
}
_REQUIRED = ("node_id", "listen", "file", "secret_file")


class SettingsError(ValueError):
    """Settings that cannot work, in one sentence with the fix."""


@dataclass(frozen=True, slots=True)
class GossipSettings:
    node_id: str
    """Unique in the group and for ever: sets of holders are made of it. A node that lost its file may keep it."""
    listen: str
    file: Path
    secret: bytes = field(repr=False)
    peers: tuple[str, ...] = ()
    round_ms: int = ROUND_MS
    tls: TlsFiles | None = None


def load_settings(path: Path, *, insecure: bool = False) -> GossipSettings:
    """`insecure`: as if the file said so."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    _check_keys(path, table)
    peers = table.get("peers", [])
    try:
        check_node_id(table["node_id"])
        for address in (table["listen"], *peers):
            split_address("an address of listen or peers", str(address))
    except (Implausible, AddressError) as error:
        raise SettingsError(f"{path}: {error}") from None
    if table["listen"] in peers:
        raise SettingsError(f"{path}: a node is no peer of its own; take {table['listen']} out of peers")
    round_ms = table.get("round_ms", ROUND_MS)
    if not 10 <= round_ms <= 3_600_000:
        raise SettingsError(f"{path}: round_ms {round_ms} is not from 10 ms to an hour")
    tls = _tls(path, table.get("tls", {}))
    if tls is None and not (insecure or table.get("insecure", False)):
        _refuse_exposure(path, table["listen"])
    return GossipSettings(
        table["node_id"],
        table["listen"],
        path.parent / table["file"],
        load_secret(path.parent / table["secret_file"]),
        tuple(peers),
        round_ms,
        tls,
    )


def _tls(path: Path, table: Mapping[str, Any]) -> TlsFiles | None:
    try:
        for key in table.keys() - {"cert", "key", "ca"}:
            raise ConfigError(f"tls.{key} is not known; known are cert, key and ca")
        return read_tls(table, path.parent)
    except ConfigError as error:
        raise SettingsError(f"{path}: {error}") from None


def _refuse_exposure(path: Path, listen: str) -> None:
    if not is_loopback(split_address("listen", listen)[0]):
        raise SettingsError(
            f"{path}: listen {listen!r} is open to other hosts without TLS, so that records can be read on the way; "
            "name certificates in [tls] (docs/SECURITY.md), listen on 127.0.0.1, or say insecure = true (--insecure)"
        )


def load_secret(path: Path) -> bytes:
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"cannot read the group's secret {path}: {error.strerror}") from None
    try:
        refuse_open("the group's secret", path)
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    if len(secret) < SECRET_MIN_BYTES:
        raise SettingsError(
            f"the secret in {path} has {len(secret)} bytes and needs at least {SECRET_MIN_BYTES}: "
            "make one with `openssl rand -hex 32` and give it to every node of the group"
        )
    return secret


def _check_keys(path: Path, table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        kind = _KINDS.get(key)
        if kind is None:
            raise SettingsError(f"{path}: {key} is not known; known are {', '.join(_KINDS)}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise SettingsError(f"{path}: {key} must be {kind.__name__}")
    missing = [key for key in _REQUIRED if key not in table]
    if missing:
        raise SettingsError(f"{path}: {', '.join(missing)} is missing")
