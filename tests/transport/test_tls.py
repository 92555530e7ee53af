"""Peer links over mutual TLS 1.3: only a certificate of the cluster's CA, in date, for the node that speaks."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cluster.listener import TransportError
from cluster.options import MIB, OptionsError
from cluster.tls import certificate_name, names_node, peer_ssl_contexts

from .nodes import CLUSTER, SECRET, Node, acquaint, append, linked, note, run, started
from .test_hostile import attack, until_closed

pytestmark = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
DAY = datetime.timedelta(days=1)


class Authority:
    """A CA of its own, in a directory of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
        certificate = (
            self._builder(self._name, self._key, 10 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = self._write("ca.pem", certificate.public_bytes(serialization.Encoding.PEM))

    def contexts(
        self, node_id: str, *, cluster: str = CLUSTER, valid: datetime.timedelta = DAY, trust: str | None = None
    ) -> dict[str, ssl.SSLContext]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
        certificate = (
            self._builder(subject, key, valid)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(certificate_name(node_id, cluster))]), False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        server, client = peer_ssl_contexts(
            self._write(f"{node_id}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{node_id}.key", private),
            trust or self.ca,
        )
        return {"ssl_server": server, "ssl_client": client}

    def _builder(self, subject: x509.Name, key: Any, valid: datetime.timedelta) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        return (
            builder.serial_number(x509.random_serial_number())
            .not_valid_before(now - 5 * DAY)
            .not_valid_after(now + valid)
        )

    def _write(self, name: str, content: bytes) -> str:
        path = self._folder / name
        path.write_bytes(content)
        return str(path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def test_nodes_of_one_authority_link(loop: str, authority: Authority) -> None:
    async def scenario() -> None:
        first, second = Node("n1", **authority.contexts("n1")), Node("n2", **authority.contexts("n2"))
        async with started(first, second):
            await linked(first, second)
            message = append(((b"x" * (16 * MIB), 9, 3),))
            assert first.transport.send("n2", message)
            for number in range(1000):
                assert second.transport.send("n1", note(number))
            await first.seen.until_count(1000)
            await second.seen.until_count(1)
            assert second.seen.messages == [message]
            assert first.seen.messages == [note(number) for number in range(1000)]

    run(loop, scenario())


def never_link(loop: str, first_tls: dict[str, Any], second_tls: dict[str, Any], *words: str) -> None:
    """n2 dials n1; neither comes up, and each log has the word expected there."""

    async def scenario() -> None:
        first, second = Node("n1", **first_tls), Node("n2", **second_tls)
        async with started(first, second):
            acquaint(first, second)
            for node, word in zip((first, second), words, strict=True):
                await node.log.until(word)
            assert first.seen.events == second.seen.events == []

    run(loop, scenario())


def test_a_foreign_authority_is_refused_by_both(loop: str, authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign")
    never_link(loop, authority.contexts("n1"), foreign.contexts("n2"), "tls_untrusted: ", "tls_untrusted: ")


def test_a_foreign_client_that_trusts_us_is_still_refused(loop: str, authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign")
    never_link(loop, authority.contexts("n1"), foreign.contexts("n2", trust=authority.ca), "tls_untrusted: ", "n1 at")


def test_an_expired_certificate_is_refused(loop: str, authority: Authority) -> None:
    expired = "tls_expired: the certificate is past its time"
    never_link(loop, authority.contexts("n1"), authority.contexts("n2", valid=-DAY), expired, "n1 at")
    never_link(loop, authority.contexts("n1", valid=-DAY), authority.contexts("n2"), "tls_failed: ", expired)


def test_the_certificate_of_another_node_is_refused(loop: str, authority: Authority) -> None:
    """n3's certificate and the secret do not make one n2, nor does n3's make one n1."""
    wrong = "tls_certificate: the certificate at"
    never_link(loop, authority.contexts("n1"), authority.contexts("n3"), wrong, "n1 at")
    never_link(loop, authority.contexts("n3"), authority.contexts("n2"), "n2 at", wrong)


def test_the_same_node_of_another_cluster_is_refused(loop: str, authority: Authority) -> None:
    never_link(loop, authority.contexts("n1"), authority.contexts("n2", cluster="green"), "n2.blue.holdfast", "n1 at")


def test_plain_and_tls_never_meet_halfway(loop: str, authority: Authority) -> None:
    """Neither side goes on without TLS, whichever of them dials; each log says that one of the two has it."""
    never_link(loop, authority.contexts("n1"), {}, "tls_mismatch: ", "n1 at")
    never_link(loop, {}, authority.contexts("n2"), "tls_mismatch: the other side speaks TLS", "tls_mismatch: ")


def test_older_tls_is_refused(loop: str, authority: Authority) -> None:
    async def scenario() -> None:
        tls = authority.contexts("n1")
        node = Node("n1", **tls)
        old = tls["ssl_client"]
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        async with started(node):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(*node.address, ssl=old)
            await node.log.until("tls_version: ")

    run(loop, scenario())


def test_garbage_at_a_tls_port_is_refused_and_the_link_stays(loop: str, authority: Authority) -> None:
    async def scenario() -> None:
        first, second = Node("n1", **authority.contexts("n1")), Node("n2", **authority.contexts("n2"))
        async with started(first, second):
            await linked(first, second)
            for _ in range(20):
                await attack(first, b"\xff" * 3000)
            assert second.transport.send("n1", note(1))
            await first.seen.until_count(1)
            assert len(first.log.about("127.0.0.1")) == 1
            assert first.seen.events == [("up", "n2")]

    run(loop, scenario())


def test_sockets_that_never_begin_tls_end_at_the_deadline(loop: str, authority: Authority) -> None:
    async def scenario() -> None:
        node = Node("n1", handshake_seconds=0.3, **authority.contexts("n1"))
        async with started(node):
            open_after = []
            for _ in range(3):
                held = [await asyncio.open_connection(*node.address) for _ in range(100)]
                for reader, writer in held:
                    await until_closed(reader)
                    writer.close()
                    with suppress(ConnectionError):
                        await writer.wait_closed()
                assert node.transport.half_open == 0
                open_after.append(len(os.listdir("/proc/self/fd")))
            assert open_after[0] == open_after[2]  # the first round may leave what the loop makes once
            assert len(node.log.about("crowded")) == 1

    run(loop, scenario())


def test_dots_in_ids_cannot_make_two_nodes_share_a_name(loop: str) -> None:
    del loop
    assert certificate_name("a.b", "c") != certificate_name("a", "b.c")
    assert certificate_name("n1", "blue") == "n1.blue.holdfast"
    assert not names_node(None, "n1", "blue")
    assert not names_node({"subjectAltName": (("URI", "n1.blue.holdfast"),)}, "n1", "blue")
    assert names_node({"subjectAltName": (("DNS", "x"), ("DNS", "n1.blue.holdfast"))}, "n1", "blue")


# --- renewal ----------------------------------------------------------------------------------------------------------


def test_a_renewed_certificate_is_shown_to_new_links_and_old_ones_stay(
    loop: str, authority: Authority, tmp_path: Path
) -> None:
    """From one authority to the next, with both believed in between; at the end the first is believed no more."""
    later = Authority(tmp_path / "later")
    both = tmp_path / "both.pem"
    both.write_text(Path(authority.ca).read_text() + Path(later.ca).read_text())

    async def scenario() -> None:
        nodes = [Node(name, **authority.contexts(name)) for name in ("n1", "n2")]
        async with started(*nodes):
            await linked(*nodes)
            for made, trust in ((authority, str(both)), (later, str(both)), (later, later.ca)):
                for node in nodes:
                    renewed = made.contexts(node.id, trust=trust)
                    node.transport.renew((renewed["ssl_server"], renewed["ssl_client"]), SECRET, None)
            assert [node.seen.events for node in nodes] == [[("up", "n2")], [("up", "n1")]]
            stranger = Node("n3", **authority.contexts("n3", trust=str(both)))
            newcomer = Node("n4", **later.contexts("n4"))
            async with started(stranger, newcomer):
                acquaint(nodes[0], stranger, newcomer)
                await nodes[0].seen.until(lambda: ("up", "n4") in nodes[0].seen.events)
                await nodes[0].log.until("tls_untrusted: ")
                assert ("up", "n3") not in nodes[0].seen.events

    run(loop, scenario())


def test_tls_is_not_switched_while_links_are_made(loop: str, authority: Authority) -> None:
    async def scenario() -> None:
        with pytest.raises(TransportError, match="restart"):
            Node("n1", **authority.contexts("n1")).transport.renew(None, SECRET, None)

    run(loop, scenario())


@pytest.mark.parametrize("dialer", ["has", "has not"])
def test_a_secret_is_changed_node_by_node(loop: str, dialer: str) -> None:
    """One has the new one and the one before, the other only that. Only n2 knows where to dial."""
    ahead: dict[str, Any] = {"secret": b"the new secret of the cluster", "previous_secret": SECRET}
    changed = ("n2", "n1") if dialer == "has" else ("n1", "n2")

    async def scenario() -> None:
        nodes = {changed[0]: Node(changed[0], **ahead), changed[1]: Node(changed[1])}
        async with started(*nodes.values()):
            nodes["n1"].transport.set_peers({"n2": "127.0.0.1:1"})
            nodes["n2"].transport.set_peers({"n1": nodes["n1"].transport.bound})
            await nodes["n1"].seen.until_up()
            await nodes["n2"].seen.until_up()
            assert nodes["n2"].transport.send("n1", note(7))
            await nodes["n1"].seen.until_count(1)

    run(loop, scenario())


def test_the_secret_before_the_last_opens_nothing(loop: str) -> None:
    ahead: dict[str, Any] = {"secret": b"the newest secret of the cluster", "previous_secret": b"the secret before it"}
    never_link(loop, ahead, {}, "bad_proof: ", "bad_proof: ")


def test_files_that_cannot_be_used_are_named_and_not_shown(loop: str, authority: Authority, tmp_path: Path) -> None:
    del loop
    authority.contexts("n1")
    authority.contexts("n2")
    own, other = tmp_path / "ours" / "n1.pem", tmp_path / "ours" / "n2.key"
    for cert, key, ca, words in (
        (own, other, authority.ca, "the key is not that of the certificate"),
        (own, tmp_path / "none", authority.ca, "No such file"),
        (other, other, authority.ca, "n2.key"),
        (own, own.with_suffix(".key"), str(other), "the authority"),
    ):
        with pytest.raises(OptionsError) as refused:
            peer_ssl_contexts(str(cert), str(key), str(ca))
        assert words in str(refused.value)
        assert other.read_text().splitlines()[1] not in str(refused.value)
