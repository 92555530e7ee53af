"""Environment variables that override a node's file: what a container needs. Checked with the rest by `config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.credentials import ConfigError

ENVIRONMENT = {
    "HOLDFAST_NODE_ID": "node_id",
    "HOLDFAST_CLUSTER_ID": "cluster_id",
    "HOLDFAST_DATA_DIR": "data_dir",
    "HOLDFAST_HTTP": "http",
    "HOLDFAST_PEER": "peer",
    "HOLDFAST_GRPC": "grpc",
    "HOLDFAST_HTTP_ADVERTISE": "http_advertise",
    "HOLDFAST_PEER_ADVERTISE": "peer_advertise",
    "HOLDFAST_SECRET": "secret",
    "HOLDFAST_SECRET_FILE": "secret_file",
    "HOLDFAST_PREVIOUS_SECRET_FILE": "previous_secret_file",
    "HOLDFAST_TLS_CERT": "tls.cert",
    "HOLDFAST_TLS_KEY": "tls.key",
    "HOLDFAST_TLS_CA": "tls.ca",
    "HOLDFAST_TLS_CLIENTS": "tls.clients",
    "HOLDFAST_TOKENS": "tokens",
    "HOLDFAST_ROOT_TOKEN_FILE": "root_token_file",
    "HOLDFAST_INSECURE": "insecure",
    "HOLDFAST_MEMBERS": "members",
    "HOLDFAST_LEVEL_AT_MOST": "level_at_most",
    "HOLDFAST_LOG_LEVEL": "log.level",
    "HOLDFAST_LOG_FORMAT": "log.format",
}
"""Variables that override the file: what a container needs. An empty one counts as absent. Others are not looked at,
because orchestrators inject names of their own (`HOLDFAST_PORT`, …)."""

_Table = dict[str, Any]


def override(root: _Table, environment: Mapping[str, str]) -> None:
    for variable, key in ENVIRONMENT.items():
        text = environment.get(variable, "")
        if not text:
            continue
        table_name, _, name = key.rpartition(".")
        table = root.setdefault(table_name, {}) if table_name else root
        if not isinstance(table, dict):
            continue  # the file's own mistake, named when the tables are checked
        if name == "insecure":
            table[name] = _flag(variable, text)
        elif name == "members":
            table[name] = _members(variable, text)
        elif name == "level_at_most":
            table[name] = _number(variable, text)
        else:
            table[name] = text
        if name in ("secret", "secret_file"):
            # The environment's way of giving the secret replaces the file's way.
            other = "secret_file" if name == "secret" else "secret"
            if not environment.get(f"HOLDFAST_{other.upper()}"):
                table.pop(other, None)


def _flag(variable: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"{variable} must be true or false, not {text!r}")
    return text == "true"


def _number(variable: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{variable} must be a whole number, not {text!r}")
    return int(text)


def _members(variable: str, text: str) -> list[_Table]:
    """`n1=peer-host:7200,http-host:7100;n2=…`"""
    members = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        node, equals, addresses = part.partition("=")
        peer, comma, http = addresses.partition(",")
        if not equals or not comma:
            raise ConfigError(f"{variable} has {part!r}; write each member as id=peer-host:port,http-host:port")
        members.append({"id": node.strip(), "peer": peer.strip(), "http": http.strip()})
    return members
