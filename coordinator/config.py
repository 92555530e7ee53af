"""A node's configuration: a TOML file plus a few environment variables, checked before anything starts.

Every mistake becomes one `ConfigError` sentence that names the key and the fix: unknown keys (with the nearest known
one), wrong types, and relations between fields. What the settings do lives where they are used; the cluster's own
relations live in `cluster.options`. configs/production.toml shows every key.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from cluster.options import ClusterOptions, Limits, OptionsError, Timing
from cluster.ports import Member
from coordinator.addresses import AddressError, is_loopback, is_wildcard, split_address
from coordinator.clientlimits import ClientLimits
from coordinator.credentials import (
    TLS_KEYS,
    ConfigError,
    TlsFiles,
    read_previous_secret,
    read_root_token,
    read_secret,
    read_tls,
)
from coordinator.environment import ENVIRONMENT, override
from coordinator.machine.levels import LEVEL, OLDEST

__all__ = ["ENVIRONMENT", "ConfigError", "NodeConfig", "TlsFiles", "known_keys", "load_config", "parse_config"]

DEVELOPMENT_SECRET = "holdfast-development-secret"  # noqa: S105 - public on purpose, refused beyond loopback below
TOKENS = ("off", "required")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

_ROOT: dict[str, type] = {
    "node_id": str,
    "cluster_id": str,
    "data_dir": str,
    "http": str,
    "peer": str,
    "grpc": str,
    "http_advertise": str,
    "peer_advertise": str,
    "secret": str,
    "secret_file": str,
    "previous_secret_file": str,
    "tokens": str,
    "root_token_file": str,
    "insecure": bool,
    "members": list,
    "level_at_most": int,
    "timing": dict,
    "limits": dict,
    "clients": dict,
    "tls": dict,
    "log": dict,
}
_REQUIRED = ("node_id", "cluster_id", "data_dir", "http", "peer")
_MEMBER: dict[str, type] = {"id": str, "peer": str, "http": str}
_LOG: dict[str, type] = {"level": str, "format": str}
_TIMING: dict[str, type] = {f.name: float for f in fields(Timing)}
_LIMITS: dict[str, type] = {f.name: int for f in fields(Limits)}
_CLIENTS: dict[str, type] = {f.name: type(f.default) for f in fields(ClientLimits)}
_TYPE_NAMES = {
    str: "text in quotes",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list of tables, [[members]]",
    dict: "a table",
}

_INSECURE = "say insecure = true (--insecure) if everybody who can reach it may do anything"

Table = dict[str, Any]
_Settings = TypeVar("_Settings", Timing, Limits, ClientLimits)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """All settings of one node, with defaults filled in and every relation checked."""

    node_id: str
    cluster_id: str
    data_dir: Path
    http: str
    peer: str
    http_advertise: str
    peer_advertise: str
    secret: bytes = field(repr=False)
    members: tuple[Member, ...] = ()
    grpc: str | None = None
    previous_secret: bytes | None = field(default=None, repr=False)
    tokens_required: bool = False
    root_token: bytes | None = field(default=None, repr=False)
    """The digest of the first administrator's token."""
    insecure: bool = False
    known_level: int = LEVEL
    """Up to which level it takes part, by its release and `level_at_most`."""
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)
    clients: ClientLimits = field(default_factory=ClientLimits)
    tls: TlsFiles | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    def cluster_options(self) -> ClusterOptions:
        return ClusterOptions(
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            data_dir=str(self.data_dir),
            members=self.members,
            timing=self.timing,
            limits=self.limits,
        )


def known_keys() -> list[str]:
    """Every key a file may have, with its table: `node_id`, `members.peer`, `timing.heartbeat`, …"""
    tables = {"members": _MEMBER, "timing": _TIMING, "limits": _LIMITS, "tls": TLS_KEYS, "log": _LOG}
    tables["clients"] = _CLIENTS
    return [f"{key}.{inner}" for key in _ROOT if key in tables for inner in tables[key]] + [
        key for key in _ROOT if key not in tables
    ]


def load_config(path: Path, environment: Mapping[str, str] | None = None, *, insecure: bool = False) -> NodeConfig:
    """The node described by the file at `path`, whose relative paths start at the file's own directory.

    `insecure`: as if the file said so.
    """
    try:
        root = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}; check the path given to --config") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    try:
        override(root, os.environ if environment is None else environment)
        if insecure:
            root["insecure"] = True
        return parse_config(root, path.resolve().parent)
    except (ConfigError, OptionsError, AddressError) as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_config(root: Table, directory: Path) -> NodeConfig:
    """The node described by a parsed file; relative paths start at `directory`."""
    _check_table(root, _ROOT, "")
    missing = [key for key in _REQUIRED if key not in root]
    if missing:
        raise ConfigError(f"{missing[0]} is missing; add a line like {missing[0]} = {_example(missing[0])}")
    members = _members(root.get("members", []))
    http, peer = root["http"], root["peer"]
    log = _table(root, "log", _LOG)
    config = NodeConfig(
        node_id=root["node_id"],
        cluster_id=root["cluster_id"],
        data_dir=directory / root["data_dir"],
        http=http,
        peer=peer,
        http_advertise=_advertised("http", root, members),
        peer_advertise=_advertised("peer", root, members),
        secret=read_secret(root, directory),
        previous_secret=read_previous_secret(root, directory),
        members=members,
        grpc=root.get("grpc"),
        tokens_required=_choice("tokens", root.get("tokens", "off"), TOKENS) == "required",
        root_token=read_root_token(root, directory),
        insecure=root.get("insecure", False),
        known_level=_level(root.get("level_at_most", LEVEL)),
        timing=_settings(Timing, _table(root, "timing", _TIMING)),
        limits=_settings(Limits, _table(root, "limits", _LIMITS)),
        clients=_settings(ClientLimits, _table(root, "clients", _CLIENTS)),
        tls=read_tls(_table(root, "tls", TLS_KEYS), directory),
        log_level=cast(Any, _choice("log.level", log.get("level", "info"), LOG_LEVELS)),
        log_format=cast(Any, _choice("log.format", log.get("format", "text"), LOG_FORMATS)),
    )
    _check_relations(config)
    return config


# --- tables and keys ------------------------------------------------------------------------------------------------


def _check_table(table: Table, known: Mapping[str, type], prefix: str) -> None:
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{prefix}{key} is not a setting{_suggestion(key, prefix, known)}")
        wanted = known[key]
        fits = isinstance(value, (int, float)) if wanted is float else isinstance(value, wanted)
        if not fits or (isinstance(value, bool) and wanted is not bool):
            shown = "" if key == "secret" else f", not {value!r}"  # a secret without quotes is one all the same
            raise ConfigError(f"{prefix}{key} must be {_TYPE_NAMES[wanted]}{shown}")
        if wanted is str and not value:
            raise ConfigError(f"{prefix}{key} is empty; give it a value or leave the line out")


def _suggestion(key: str, prefix: str, known: Iterable[str]) -> str:
    """The nearest known key, here or in another table."""
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    if near:
        return f"; did you mean {prefix}{near[0]}?"
    elsewhere = [name for name in known_keys() if name.rpartition(".")[2] == key]
    elsewhere += difflib.get_close_matches(prefix + key, known_keys(), n=1, cutoff=0.6)
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    return f"; remove it (settings here: {', '.join(known)})"


def _table(root: Table, name: str, known: Mapping[str, type]) -> Table:
    table = cast(Table, root.get(name, {}))
    _check_table(table, known, f"{name}.")
    return table


def _settings(kind: type[_Settings], table: Table) -> _Settings:
    return kind(**table)


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        near = difflib.get_close_matches(value, choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{name} {value!r} must be one of {', '.join(choices)}{hint}")
    return value


def _level(at_most: int) -> int:
    if not OLDEST <= at_most <= LEVEL:
        known = f"this release knows levels {OLDEST} to {LEVEL}"
        raise ConfigError(f"level_at_most {at_most} is none to run at: {known}; name one of them, or remove the line")
    return at_most


def _example(key: str) -> str:
    return {
        "node_id": '"n1"',
        "cluster_id": '"production"',
        "data_dir": '"/var/lib/holdfast"',
        "http": '"127.0.0.1:7101"',
        "peer": '"127.0.0.1:7201"',
    }[key]


# --- values ---------------------------------------------------------------------------------------------------------


def _members(entries: list[Any]) -> tuple[Member, ...]:
    members = []
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise ConfigError("members must be a list of tables, [[members]], each with id, peer and http")
        _check_table(entry, _MEMBER, "members.")
        for key in _MEMBER:
            if key not in entry:
                raise ConfigError(f"members.{key} is missing in the [[members]] table number {number}; add it")
        for key in ("peer", "http"):
            host, _ = split_address(f"members.{key}", entry[key])
            if is_wildcard(host):
                raise ConfigError(f"members.{key} {entry[key]!r} is no address others can dial; name the host")
        members.append(Member(id=entry["id"], peer=entry["peer"], http=entry["http"]))
    return tuple(members)


def _advertised(kind: Literal["http", "peer"], root: Table, members: tuple[Member, ...]) -> str:
    """What the others dial: said outright, else this node's entry in members, else the listening address."""
    host, _ = split_address(kind, root[kind])
    said: str | None = root.get(f"{kind}_advertise")
    own = next((getattr(member, kind) for member in members if member.id == root["node_id"]), None)
    if said is not None:
        split_address(f"{kind}_advertise", said)
        if own is not None and own != said:
            raise ConfigError(
                f"{kind}_advertise {said!r} differs from this node's members.{kind} {own!r}; make them the same"
            )
        return said
    if own is not None:
        return cast(str, own)
    if is_wildcard(host):
        raise ConfigError(f"{kind} {root[kind]!r} is no address others can dial; add {kind}_advertise")
    return cast(str, root[kind])


# --- relations ------------------------------------------------------------------------------------------------------


def _check_relations(config: NodeConfig) -> None:
    config.cluster_options().check()
    config.clients.check()
    if config.http == config.peer:
        raise ConfigError(f"http and peer are both {config.http!r}; give each its own port")
    if config.grpc is not None:
        _check_grpc(config, config.grpc)
    dialled = [address for member in config.members for address in (member.http, member.peer)]
    repeated = sorted({address for address in dialled if dialled.count(address) > 1})
    if repeated:
        raise ConfigError(f"members has the address {repeated[0]!r} twice; every node needs addresses of its own")
    if not config.insecure:
        _check_exposure(config)


def _check_grpc(config: NodeConfig, listen: str) -> None:
    if split_address("grpc", listen) in (split_address("http", config.http), split_address("peer", config.peer)):
        raise ConfigError(f"grpc {listen!r} is the address of http or peer too; give each its own port")
    if not all(find_spec(package) for package in ("grpc", "google", "google.protobuf")):
        how = "pip install '.[grpc]' in the repository, or the wheel's name in place of the dot"
        raise ConfigError(f"grpc {listen!r} needs an extra: {how}; or remove the line")


def _check_exposure(config: NodeConfig) -> None:
    """Beyond loopback only what is protected, unless it is said to be insecure in so many words."""
    if not is_loopback(split_address("peer", config.peer)[0]):
        if config.tls is None:
            raise _exposed("peer", config.peer, "without TLS")
        if config.secret == DEVELOPMENT_SECRET.encode():
            told = f"peer {config.peer!r} is open to other hosts with the published development secret"
            raise ConfigError(f"{told}; make one with `openssl rand -hex 32`")
    for name, listen in (("http", config.http), ("grpc", config.grpc)):
        if listen is None or is_loopback(split_address(name, listen)[0]):
            continue
        if config.tls is None or config.tls.clients == "off":
            raise _exposed(name, listen, "without TLS")
        if not config.tokens_required:
            raise ConfigError(
                f'{name} {listen!r} is open to other hosts without access tokens; write tokens = "required" '
                f"(docs/SECURITY.md), listen on 127.0.0.1, or {_INSECURE}"
            )


def _exposed(name: str, listen: str, how: str) -> ConfigError:
    fix = "make certificates with `holdfast certs` and name them in [tls] (docs/SECURITY.md)"
    return ConfigError(f"{name} {listen!r} is open to other hosts {how}; {fix}, listen on 127.0.0.1, or {_INSECURE}")
