"""A node listens beyond loopback only with TLS and access tokens, or when it is told `insecure` in so many words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.authority import Authority
from coordinator.cli import main
from coordinator.config import ConfigError, load_config
from coordinator.endpoint import EndpointError, call
from coordinator.gossip.settings import SettingsError, load_settings
from tests.cli.processes import REPOSITORY
from tests.ports import free_port
from tests.waiting import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = Authority.make(tmp_path / "authority", "blue", 30).node("n1", ["127.0.0.1"], 1, tmp_path, renew=False)
    made.certificate.rename(tmp_path / "node.pem")
    made.key.rename(tmp_path / "node.key")
    (tmp_path / "ca.pem").write_bytes((tmp_path / "authority" / "ca.pem").read_bytes())
    (tmp_path / "secret").write_text("a secret for listening on all addresses")
    (tmp_path / "secret").chmod(0o600)
    return tmp_path


TLS = '[tls]\ncert = "node.pem"\nkey = "node.key"\nca = "ca.pem"\n'
TOKENS = 'tokens = "required"\n'


def config(home: Path, *, http: str = "127.0.0.1", peer: str = "127.0.0.1", grpc: str = "", more: str = "") -> Path:
    ports = [free_port() for _ in range(3)]
    served = f'grpc = "{grpc}:{ports[2]}"\n' if grpc else ""
    path = home / "node.toml"
    path.write_text(
        f'node_id = "n1"\ncluster_id = "blue"\ndata_dir = "data"\n'
        f'http = "{http}:{ports[0]}"\npeer = "{peer}:{ports[1]}"\n'
        f'http_advertise = "127.0.0.1:{ports[0]}"\npeer_advertise = "127.0.0.1:{ports[1]}"\n{served}'
        f'secret_file = "secret"\n{more}\n'
    )
    return path


@pytest.mark.parametrize("beyond", ["0.0.0.0", "[::]", "10.1.2.3", "holdfast-1.internal"])
@pytest.mark.parametrize(
    ("port", "more", "words"),
    [
        ("peer", "", "without TLS; make certificates with `holdfast certs`"),
        ("http", "", "without TLS; make certificates with `holdfast certs`"),
        ("grpc", TOKENS, "without TLS; make certificates with `holdfast certs`"),
        ("http", TLS, 'without access tokens; write tokens = "required"'),
        ("grpc", TLS, 'without access tokens; write tokens = "required"'),
        ("http", TOKENS + TLS + 'clients = "off"\n', "without TLS"),
    ],
)
def test_a_node_refuses_to_listen(home: Path, port: str, beyond: str, more: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(config(home, **{port: beyond}, more=more), {})
    told = str(refused.value)
    assert f"{port} '{beyond}:" in told
    assert words in told
    assert "insecure = true (--insecure)" in told


def test_the_command_starts_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "--config", str(config(home, peer="0.0.0.0"))]) == 1
    assert "open to other hosts without TLS" in capsys.readouterr().err
    assert not (home / "data").exists()


def test_with_tls_and_tokens_it_may(home: Path) -> None:
    everywhere = config(home, http="0.0.0.0", peer="0.0.0.0", grpc="0.0.0.0", more=TOKENS + TLS)
    assert not load_config(everywhere, {}).insecure


def test_loopback_needs_neither(home: Path) -> None:
    assert load_config(config(home, http="localhost", peer="[::1]"), {}).tls is None


def test_a_published_secret_is_refused_even_with_tls(home: Path) -> None:
    (home / "secret").write_text("holdfast-development-secret")
    with pytest.raises(ValueError, match="published development secret"):
        load_config(config(home, peer="0.0.0.0", more=TLS), {})


def test_insecure_in_so_many_words_is_the_way_out(home: Path) -> None:
    path = config(home, http="0.0.0.0", peer="0.0.0.0")
    command = [sys.executable, "-m", "coordinator.cli", "node", "--insecure", "--config", str(path)]
    port = load_config(path, {}, insecure=True).http.rpartition(":")[2]

    def answers() -> bool:
        try:
            return call(f"127.0.0.1:{port}", "GET", "/healthz") is not None
        except EndpointError:
            return False

    with open(home / "log", "wb") as log:
        process = subprocess.Popen([*command, "--parent", str(os.getpid())], cwd=REPOSITORY, stdout=log, stderr=log)
    try:
        wait_until(answers, 90, "an answer", 0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0
    finally:
        process.kill()
        process.wait()


def test_the_containers_say_it_in_so_many_words() -> None:
    """On private networks; their ports are published on the host's loopback only."""
    assert "insecure = true" in (REPOSITORY / "configs" / "docker.toml").read_text()
    compose = (REPOSITORY / "docker-compose.yml").read_text()
    assert 'HOLDFAST_INSECURE: "true"' in compose
    published = [line for line in compose.splitlines() if line.strip().startswith("ports:")]
    assert published
    assert all('"127.0.0.1:' in line for line in published)


def gossip(home: Path, more: str = "") -> Path:
    path = home / "gossip.toml"
    path.write_text(f'node_id = "g1"\nlisten = "0.0.0.0:7400"\nfile = "g1.db"\nsecret_file = "secret"\n{more}')
    return path


def test_gossip_follows_the_same_rule(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gossip", "run", "--config", str(gossip(home))]) == 1
    assert "open to other hosts without TLS" in capsys.readouterr().err
    assert load_settings(gossip(home, TLS)).tls is not None
    assert load_settings(gossip(home, "insecure = true\n")).tls is None
    assert load_settings(gossip(home), insecure=True).tls is None
    with pytest.raises(SettingsError, match=r"tls\.clients is not known"):
        load_settings(gossip(home, TLS + 'clients = "tls"\n'))
