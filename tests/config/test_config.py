"""Every mistake in a configuration is one sentence that names the key and the fix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import (
    DEVELOPMENT_SECRET,
    ENVIRONMENT,
    ConfigError,
    NodeConfig,
    known_keys,
    load_config,
    parse_config,
)

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs"


def minimal(**changes: Any) -> dict[str, Any]:
    root: dict[str, Any] = {
        "node_id": "n1",
        "cluster_id": "c",
        "data_dir": "data",
        "http": "127.0.0.1:7101",
        "peer": "127.0.0.1:7201",
        "secret": DEVELOPMENT_SECRET,
    }
    root.update(changes)
    return {key: value for key, value in root.items() if value is not None}


def member(number: int, **changes: str) -> dict[str, str]:
    return {
        "id": f"n{number}",
        "peer": f"127.0.0.1:{7200 + number}",
        "http": f"127.0.0.1:{7100 + number}",
        **changes,
    }


def refusal(root: dict[str, Any], directory: Path = Path("/")) -> str:
    with pytest.raises(ValueError) as caught:
        parse_config(root, directory)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- the shipped files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "node", "nodes"),
    [(f"dev-{n}.toml", n, 3) for n in range(1, 4)] + [(f"five/{n}.toml", n, 5) for n in range(1, 6)],
)
def test_development_files_load(name: str, node: int, nodes: int) -> None:
    config = load_config(CONFIGS / name, {})
    assert config.node_id == f"n{node}"
    assert config.http == f"127.0.0.1:{7100 + node}"
    assert config.peer == f"127.0.0.1:{7200 + node}"
    assert [m.id for m in config.members] == [f"n{n}" for n in range(1, nodes + 1)]
    assert config.data_dir.resolve().is_relative_to(REPOSITORY / "data")


def production(tmp_path: Path) -> Path:
    """The shipped production file, its paths led to files that exist here."""
    text = (CONFIGS / "production.toml").read_text()
    for name in ("secret", "node.pem", "node.key", "ca.pem"):
        file = tmp_path / name
        file.write_text("x" * 64)
        file.chmod(0o600)
    path = tmp_path / "production.toml"
    path.write_text(text.replace("/etc/holdfast/", f"{tmp_path}/"))
    return path


def test_the_production_file_loads_as_shipped(tmp_path: Path) -> None:
    config = load_config(production(tmp_path), {})
    assert len(config.members) == 3
    assert config.tls is not None
    assert (config.tls.key, config.tls.clients) == (tmp_path / "node.key", "tls")
    assert config.tokens_required
    assert not config.insecure


def test_the_production_file_shows_every_key_explained() -> None:
    lines = (CONFIGS / "production.toml").read_text().splitlines()
    table, shown = "", set()
    for number, line in enumerate(lines):
        if heading := re.match(r"^(?:# )?\[\[?(\w+)\]\]?$", line):
            table = f"{heading[1]}."
        elif setting := re.match(r"^(?:# )?(\w+) = ", line):
            above = [text for text in lines[max(0, number - 8) : number] if text.startswith("# ")]
            assert above or f"{table}{setting[1]}" in shown, f"{line!r} has no comment above it"
            shown.add(f"{table}{setting[1]}")
    assert shown == set(known_keys())


def test_the_production_file_shows_the_defaults(tmp_path: Path) -> None:
    shown = load_config(production(tmp_path), {})
    plain = parse_config(minimal(), tmp_path)
    assert (shown.timing, shown.limits) == (plain.timing, plain.limits)
    assert (shown.log_level, shown.log_format) == (plain.log_level, plain.log_format)


# --- what loads -----------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    config = parse_config(minimal(), Path("/srv"))
    assert config.data_dir == Path("/srv/data")
    assert config.http_advertise == config.http
    assert config.cluster_options().members == ()
    assert not config.insecure


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "before").write_text("the secret that was before")
    (tmp_path / "before").chmod(0o600)
    shown = repr(parse_config(minimal(previous_secret_file="before"), tmp_path))
    assert DEVELOPMENT_SECRET not in shown
    assert "the secret that was before" not in shown
    assert "1234567890123456" not in refusal(minimal(secret=1234567890123456))


def test_a_wildcard_advertises_its_members_entry() -> None:
    config = parse_config(
        minimal(http="0.0.0.0:7101", peer="[::]:7201", insecure=True, members=[member(1), member(2)]), Path("/")
    )
    assert config.http_advertise == "127.0.0.1:7101"
    assert config.peer_advertise == "127.0.0.1:7201"


def test_settings_reach_the_cluster_options() -> None:
    config = parse_config(minimal(timing={"heartbeat": 1, "election_min": 3, "election_max": 6}), Path("/"))
    assert config.cluster_options().timing.election_max == 6


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node_id": None}, ["node_id is missing", 'node_id = "n1"']),
        ({"node_idd": "n1"}, ["node_idd is not a setting", "did you mean node_id?"]),
        ({"heartbeat": 1}, ["heartbeat is not a setting", "did you mean timing.heartbeat?"]),
        ({"zzz": 1}, ["zzz is not a setting", "remove it"]),
        ({"timing": {"hartbeat": 1}}, ["timing.hartbeat", "did you mean timing.heartbeat?"]),
        ({"limits": {"frame_byte": 1}}, ["did you mean limits.frame_bytes?"]),
        ({"limits": {"frame_bytes": 1.5}}, ["limits.frame_bytes must be a whole number"]),
        ({"limits": {"frame_bytes": True}}, ["limits.frame_bytes must be a whole number"]),
        ({"timing": {"drift": "1%"}}, ["timing.drift must be a number"]),
        ({"timing": 3}, ["timing must be a table"]),
        ({"insecure": "yes"}, ["insecure must be true or false"]),
        ({"node_id": ""}, ["node_id is empty"]),
        ({"node_id": "a b"}, ["node_id 'a b' must be 1-64"]),
        ({"http": "7101"}, ["http '7101' must be host:port"]),
        ({"http": "::1:7101"}, ["must be host:port", "[::1]:7101"]),
        ({"http": "127.0.0.1:0"}, ["http '127.0.0.1:0' needs a port"]),
        ({"http": "127.0.0.1:99999"}, ["needs a port from 1 to 65535"]),
        ({"peer": "127.0.0.1:7101"}, ["http and peer are both", "its own port"]),
        ({"http": "0.0.0.0:7101"}, ["http '0.0.0.0:7101' is no address others can dial", "add http_advertise"]),
        ({"http": "10.0.0.1:7101"}, ["http '10.0.0.1:7101' is open to other hosts without TLS", "insecure = true"]),
        ({"grpc": "7301"}, ["grpc '7301' must be host:port"]),
        ({"grpc": "127.0.0.1:7201"}, ["grpc '127.0.0.1:7201' is the address of http or peer too", "its own port"]),
        ({"grpc": "0.0.0.0:7301"}, ["grpc '0.0.0.0:7301' is open to other hosts", "insecure = true"]),
        ({"peer": "10.0.0.1:7201"}, ["peer '10.0.0.1:7201' is open to other hosts without TLS", "holdfast certs"]),
        ({"secret": 1234567890123456}, ["secret must be text in quotes"]),
        ({"previous_secret_file": "/nowhere"}, ["previous_secret_file /nowhere cannot be read"]),
        ({"tokens": "requird"}, ["tokens 'requird'", "did you mean 'required'?"]),
        ({"secret": None}, ["secret_file is missing", "openssl rand"]),
        ({"secret": "short"}, ["secret holds 5 bytes", "at least 16"]),
        ({"secret_file": "x"}, ["secret and secret_file are both given"]),
        ({"secret": None, "secret_file": "/nowhere/secret"}, ["secret_file /nowhere/secret cannot be read"]),
        ({"members": ["n1"]}, ["members must be a list of tables"]),
        ({"members": {"id": "n1"}}, ["members must be a list of tables"]),
        ({"members": [{"id": "n1", "peer": "h:1"}]}, ["members.http is missing", "number 1"]),
        ({"members": [member(1, htpp="h:1")]}, ["members.htpp", "did you mean members.http?"]),
        ({"members": [member(2)]}, ["node_id 'n1' is not among members"]),
        ({"members": [member(1), member(1)]}, ["members has an id twice"]),
        ({"members": [member(1), member(2, peer="127.0.0.1:7201")]}, ["'127.0.0.1:7201' twice"]),
        ({"members": [member(1, http="0.0.0.0:7101")]}, ["members.http '0.0.0.0:7101'", "name the host"]),
        ({"members": [member(1)], "http_advertise": "h:1"}, ["http_advertise 'h:1' differs", "make them the same"]),
        ({"tls": {"cert": "a"}}, ["tls.key is missing", "together"]),
        ({"tls": {"cert": "a", "key": "b", "ca": "c"}}, ["tls.cert names /a, which is not a file"]),
        ({"tls": {"cert": "a", "key": "b", "ca": "c", "clients": "on"}}, ["tls.clients 'on' must be one of tls"]),
        ({"log": {"level": "inf"}}, ["log.level 'inf'", "did you mean 'info'?"]),
        ({"log": {"format": "xml"}}, ["log.format 'xml' must be one of text, json"]),
        ({"timing": {"election_min": 0.2}}, ["timing.election_min", "three heartbeats"]),
        ({"limits": {"frame_bytes": 1024}}, ["limits.frame_bytes must exceed"]),
    ],
)
def test_refusals_name_the_key_and_the_fix(changes: dict[str, Any], words: list[str]) -> None:
    message = refusal(minimal(**changes))
    for word in words:
        assert word in message


def test_insecure_is_the_way_out() -> None:
    config = parse_config(minimal(http="10.0.0.1:7101", peer="10.0.0.1:7201", insecure=True), Path("/"))
    assert config.insecure


def test_grpc_without_its_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_config(minimal(grpc="127.0.0.1:7301"), Path("/")).grpc == "127.0.0.1:7301"
    monkeypatch.setattr("coordinator.config.find_spec", lambda package: None if package == "grpc" else True)
    assert "pip install '.[grpc]' in the repository" in refusal(minimal(grpc="127.0.0.1:7301"))
    assert parse_config(minimal(), Path("/")).grpc is None


def test_a_secret_file_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    secret.chmod(0o640)
    root = minimal(secret=None, secret_file="secret")
    assert "chmod 600" in refusal(root, tmp_path)
    secret.chmod(0o600)
    assert parse_config(root, tmp_path).secret == b"0123456789abcdef"


# --- files and the environment --------------------------------------------------------------------------------------


def load(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> NodeConfig:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return load_config(path, environment or {})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.toml: No such file"):
        load_config(tmp_path / "absent.toml", {})


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"node\.toml is not valid TOML: .*line 1"):
        load(tmp_path, "node_id = n1\n")


def test_a_mistake_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"node\.toml: node_id is missing"):
        load(tmp_path, "")


def test_the_environment_overrides_the_file() -> None:
    config = load_config(
        CONFIGS / "docker.toml",
        {
            "HOLDFAST_NODE_ID": "n2",
            "HOLDFAST_SECRET": "0123456789abcdef",
            "HOLDFAST_MEMBERS": "n1=n1:7200,n1:7100; n2=n2:7200,n2:7100;",
            "HOLDFAST_LOG_FORMAT": "json",
            "HOLDFAST_DATA_DIR": "",
            "HOLDFAST_PORT": "tcp://injected",
        },
    )
    assert config.node_id == "n2"
    assert config.peer_advertise == "n2:7200"
    assert [m.http for m in config.members] == ["n1:7100", "n2:7100"]
    assert config.log_format == "json"
    assert config.data_dir == Path("/var/lib/holdfast")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"HOLDFAST_MEMBERS": "n1"},
            "HOLDFAST_MEMBERS has 'n1'; write each member as id=peer-host:port,http-host:port",
        ),
        ({"HOLDFAST_INSECURE": "1"}, "HOLDFAST_INSECURE must be true or false, not '1'"),
    ],
)
def test_mistakes_in_the_environment(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_config(CONFIGS / "dev-1.toml", environment)


def test_the_environments_secret_replaces_the_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("fedcba9876543210")
    (tmp_path / "secret").chmod(0o600)
    config = load_config(CONFIGS / "dev-1.toml", {"HOLDFAST_SECRET_FILE": str(tmp_path / "secret")})
    assert config.secret == b"fedcba9876543210"


def test_every_variable_overrides_a_known_key() -> None:
    assert {key for key in ENVIRONMENT.values() if key != "members"} <= set(known_keys())
