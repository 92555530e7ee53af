"""`holdfast certs`: what it makes is fit for use, protected, and never overwritten by accident."""

from __future__ import annotations

import errno
import json
import os
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest

from cluster.tls import names_node, peer_ssl_contexts
from coordinator.authority import Authority, AuthorityError
from coordinator.cli import main
from coordinator.http.identity import identity_of, is_node
from coordinator.trust import client_context


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    assert main(["certs", "init", "--cluster-id", "blue", "--dir", str(tmp_path / "certs")]) == 0
    return tmp_path / "certs"


def certs(directory: Path, *words: str) -> int:
    return main(["certs", *words, "--dir", str(directory)])


def presented(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[dict[str, Any], dict[str, Any]]:
    """What each side sees of the other after a hand-shake: (the client's certificate, the server's)."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asked, serving = client.wrap_bio(down, up, server_hostname="127.0.0.1"), server.wrap_bio(up, down, server_side=True)
    for _ in range(3):
        for side in (asked, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return serving.getpeercert() or {}, asked.getpeercert() or {}


def test_two_nodes_believe_each_other(directory: Path) -> None:
    for node in ("n1", "n2"):
        assert certs(directory, "node", node, "--host", "127.0.0.1") == 0
    ca = str(directory / "ca.pem")
    contexts = {
        node: peer_ssl_contexts(str(directory / f"node-{node}.pem"), str(directory / f"node-{node}.key"), ca)
        for node in ("n1", "n2")
    }
    dialer, acceptor = presented(contexts["n1"][0], contexts["n2"][1])
    assert names_node(dialer, "n2", "blue")
    assert names_node(acceptor, "n1", "blue")
    assert not names_node(dialer, "n1", "blue")
    assert is_node(dialer, "blue")
    assert not is_node(dialer, "green")
    assert identity_of(dialer) is None


def test_a_restored_cluster_has_certificates_of_its_own_id(directory: Path) -> None:
    assert certs(directory, "node", "n1", "--host", "127.0.0.1", "--cluster-id", "blue-1794841101") == 0
    made = str(directory / "node-n1.pem"), str(directory / "node-n1.key"), str(directory / "ca.pem")
    dialer, _ = presented(*peer_ssl_contexts(*made))
    assert names_node(dialer, "n1", "blue-1794841101")
    assert not names_node(dialer, "n1", "blue")


def test_a_client_is_known_by_its_identity(directory: Path) -> None:
    assert certs(directory, "node", "n1", "--host", "127.0.0.1") == 0
    assert certs(directory, "client", "alice/reports") == 0
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "node-n1.pem", directory / "node-n1.key")
    server.load_verify_locations(directory / "ca.pem")
    server.verify_mode = ssl.CERT_OPTIONAL
    shown = directory / "client-alice%2Freports.pem", directory / "client-alice%2Freports.key"
    assert identity_of(presented(server, client_context(directory / "ca.pem", *shown))[0]) == "alice/reports"
    assert identity_of(presented(server, client_context(directory / "ca.pem"))[0]) is None


@pytest.mark.parametrize(
    "names",
    [
        (),
        (("DNS", "urn:holdfast:client:alice"),),
        (("URI", "urn:holdfast:client:"),),
        (("URI", "urn:holdfast:client:a%00b"),),
        (("URI", "urn:holdfast:client:alice\u00e9"),),
        (("URI", "urn:holdfast:client:%ff"),),
        (("URI", "urn:holdfast:client:" + "a" * 65),),
        (("URI", "urn:holdfast:client:alice"), ("URI", "urn:holdfast:client:bob")),
        (("URI", "urn:other:client:alice"),),
    ],
)
def test_a_certificate_that_names_nobody_names_nobody(names: tuple[tuple[str, str], ...]) -> None:
    assert identity_of({"subjectAltName": names}) is None
    assert identity_of(None) is None


def test_a_dot_in_a_name_makes_no_node_of_another_cluster() -> None:
    named = {"subjectAltName": (("DNS", "n1.green.blue.holdfast"),)}
    assert not is_node(named, "blue")
    assert is_node({"subjectAltName": (("DNS", "n1.green%2Eblue.holdfast"),)}, "green.blue")


def test_keys_are_their_owners_alone(directory: Path) -> None:
    certs(directory, "node", "n1", "--host", "h1")
    certs(directory, "client", "alice")
    keys = list(directory.glob("*.key"))
    assert len(keys) == 3
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert not list(directory.glob(".*"))


def test_nothing_is_overwritten_unless_it_is_renewed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs(directory, "node", "n1", "--host", "h1")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert certs(directory, "node", "n1", "--host", "h1") == 1
    assert "say --renew" in capsys.readouterr().err
    assert certs(directory, "init", "--cluster-id", "blue") == 1
    assert "not overwritten" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert certs(directory, "node", "n1", "--host", "h1", "--renew") == 0
    changed = {path.name for path in directory.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"node-n1.pem", "node-n1.key"}


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("words", [("init", "--cluster-id", "red"), ("node", "n1", "--host", "h1", "--renew")])
def test_a_disk_that_fails_in_the_middle_leaves_what_was_there(
    directory: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], call: str
) -> None:
    """A new key beside the certificate of the old one would be of no use, and the old one gone."""
    certs(directory, "node", "n1", "--host", "h1")
    target = directory if words[0] == "node" else directory / "red"
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    works, times = getattr(os, call), 1 if call == "fsync" else 0

    def fails(*given: Any) -> None:
        nonlocal times
        times -= 1
        if times < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        works(*given)

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fails)
        assert certs(target, *words) == 1
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == before
    assert certs(target, *words) == 0


def test_a_key_stays_with_its_certificate_though_two_are_issued_at_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another would renew it once this one has put the key into its place, and before the certificate is in its own."""
    authority, put = Authority(directory), os.replace

    def put_and_be_disturbed(source: Path, target: Path) -> None:
        put(source, target)
        with pytest.raises(AuthorityError, match=r"another process writes certificates .* try again"):
            authority.node("n1", ["h2"], 1, directory, renew=True)

    with monkeypatch.context() as disturbed:
        disturbed.setattr(os, "replace", put_and_be_disturbed)
        authority.node("n1", ["h1"], 1, directory, renew=True)
    ssl.create_default_context().load_cert_chain(directory / "node-n1.pem", directory / "node-n1.key")
    authority.node("n1", ["h2"], 1, directory, renew=True)


def test_what_is_printed_says_what_to_do_and_no_key(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs(directory, "node", "n1", "--host", "h1")
    told = capsys.readouterr().out
    assert "[tls]" in told
    assert 'key = "node-n1.key"' in told
    certs(directory, "client", "alice", "--json")
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["identity"], document["cluster_id"]) == ("client", "alice", "blue")
    for key in directory.glob("*.key"):
        assert key.read_text().splitlines()[1] not in told + str(document)


def test_show_tells_what_expires_when(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs(directory, "node", "n1", "--host", "h1", "--host", "10.0.0.1", "--days", "7")
    capsys.readouterr()
    bundle = directory / "bundle.pem"
    bundle.write_bytes((directory / "ca.pem").read_bytes() + (directory / "node-n1.pem").read_bytes())
    assert main(["certs", "show", str(bundle), "--json"]) == 0
    authority, node = json.loads(capsys.readouterr().out)["certificates"]
    assert (authority["kind"], node["kind"], node["days_left"]) == ("authority", "node", 6)
    assert node["names"] == ["n1.blue.holdfast", "h1", "10.0.0.1"]
    assert main(["certs", "show", str(directory / "ca.key")]) == 1
    assert "keys are not shown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["node", "n 1", "--host", "h"], "must be 1-64"),
        (["node", "é", "--host", "h"], "ASCII"),
        (["node", "n1", "--host", "h:7100"], "leave the port out"),
        (["node", "n1", "--host", "*.internal"], "no host name"),
        (["node", "n1", "--host", "n2.blue.holdfast"], "name of a node"),
        (["node", "n1", "--host", "h", "--days", "9999"], "the authority itself ends"),
        (["client", "a b"], "1-64 letters"),
    ],
)
def test_mistakes_make_nothing(
    directory: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(directory.iterdir())
    assert certs(directory, *words) == 1
    assert told in capsys.readouterr().err
    assert sorted(directory.iterdir()) == before


def test_an_authority_that_is_not_whole_is_refused(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(AuthorityError, match="holdfast certs init"):
        Authority(tmp_path / "nowhere")
    other = Authority.make(tmp_path / "other", "blue", 30)
    (directory / "ca.key").write_bytes((other.directory / "ca.key").read_bytes())
    with pytest.raises(AuthorityError, match="not the key of"):
        Authority(directory)
