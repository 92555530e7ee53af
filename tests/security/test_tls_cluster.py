"""A live cluster with certificates: what gets in over TLS, what does not, and that renewing them fails no call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import grpc
import pytest

from coordinator.authority import Authority, described
from coordinator.cli import main
from coordinator.client import Client, Unavailable, client_context
from coordinator.endpoint import Endpoint, EndpointError, NoAnswer, call
from coordinator.rpc.messages import CLASSES, PACKAGE
from tests.security.nodes import CLUSTER, NAMES, SecureNodes
from tests.waiting import until, wait_until

STATUS = "/api/v1/cluster"
PACE_S = 0.05
_ENDS = re.compile(r'^holdfast_certificate_expires_timestamp_seconds\{file="(\w+)"\} (\S+)$', re.MULTILINE)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNodes]:
    running = SecureNodes(tmp_path_factory.mktemp("tls") / "cluster", grpc=True)
    try:
        running.start()
        running.wait_ready()
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Of the same name, and not ours."""
    return Authority.make(tmp_path_factory.mktemp("foreign"), CLUSTER, 30)


# --- who gets in ------------------------------------------------------------------------------------------------------


def test_the_sdk_works_over_tls(nodes: SecureNodes) -> None:
    async def scenario() -> None:
        async with Client(nodes.endpoints, tls=client_context(nodes.ca)) as client, client.lock("over-tls") as held:
            assert held.token > 0

    asyncio.run(scenario())


def test_the_command_line_works_over_tls(nodes: SecureNodes, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--endpoints", ",".join(nodes.address(name) for name in NAMES), "--ca", str(nodes.ca), "--json"]
    for command in (["status"], ["locks", "list"]):
        assert main([*command, *where]) == 0
        assert json.loads(capsys.readouterr().out)


def test_a_request_is_passed_on_to_the_leader_over_tls(nodes: SecureNodes) -> None:
    leader = nodes.wait_ready()
    follower = next(name for name in NAMES if name != leader)

    def passed_on() -> bool:
        """On a busy machine it may be without a leader for a moment, or too slow to be handed the lead."""
        try:
            path = f"{STATUS}/transfer?timeout_ms=20000"
            return bool(call(nodes.endpoint(follower), "POST", path, {"target": follower}, timeout_s=30))
        except EndpointError as error:
            assert error.outcome != "denied" or error.code == "no_target", error
            return bool(nodes.cluster(follower)["leader"] == follower)

    wait_until(passed_on, 90, "the lead to be handed over")
    wait_until(lambda: nodes.cluster(follower)["leader"] == follower, 90, "the follower leads")


def test_grpc_works_over_tls_and_only_so(nodes: SecureNodes) -> None:
    request = CLASSES["AcquireLeaseRequest"]()
    service = f"/{PACKAGE}.DistributedGCService/AcquireLease"
    credentials = grpc.ssl_channel_credentials(nodes.ca.read_bytes())
    with grpc.secure_channel(nodes.grpc_address("n1"), credentials) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(service)(request.SerializeToString(), timeout=60)
        # It arrived: what is wrong with it is what is in it.
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with grpc.insecure_channel(nodes.grpc_address("n1")) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(service)(request.SerializeToString(), timeout=60)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


# --- who does not -----------------------------------------------------------------------------------------------------


def test_plain_http_gets_no_answer(nodes: SecureNodes) -> None:
    with pytest.raises(NoAnswer, match="does it serve TLS"):
        call(f"http://{nodes.address('n1')}", "GET", STATUS, timeout_s=60)


def test_a_client_refuses_nodes_of_an_authority_it_does_not_know(nodes: SecureNodes, foreign: Authority) -> None:
    other = foreign.directory / "ca.pem"
    with pytest.raises(NoAnswer, match="say --ca"):
        call(Endpoint(nodes.address("n1"), client_context(other)), "GET", STATUS)

    async def scenario() -> None:
        async with Client(nodes.endpoints, tls=client_context(other), timeout=1) as client:
            with pytest.raises(Unavailable):
                await client.call("GET", "/locks")

    asyncio.run(scenario())


def test_a_client_refuses_a_node_at_an_address_that_is_not_its_own(nodes: SecureNodes) -> None:
    """A certificate of the authority is not enough: it must be for where the client meant to go."""
    certificate, _ = nodes.client_files("impostor")
    assert "127.0.0.1" not in certificate.read_text()
    context = client_context(nodes.ca)
    with (
        socket.create_connection(("127.0.0.1", int(nodes.address("n1").partition(":")[2]))) as plain,
        pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"),
    ):
        context.wrap_socket(plain, server_hostname="holdfast-9.internal")


def test_a_client_certificate_of_another_authority_is_refused(
    nodes: SecureNodes, foreign: Authority, tmp_path: Path
) -> None:
    made = foreign.client("alice", 1, tmp_path, renew=False)
    with pytest.raises(EndpointError):
        call(nodes.endpoint("n1", made.certificate, made.key), "GET", STATUS)
    assert nodes.cluster("n1", *nodes.client_files("alice"))["cluster_id"] == CLUSTER


def test_a_client_certificate_cannot_serve(nodes: SecureNodes) -> None:
    """Whoever has one cannot pretend to be a node to other clients."""
    certificate, key = nodes.client_files("mallory")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = client_context(nodes.ca)
    context.check_hostname = False
    client, impostor = context.wrap_bio(ours, theirs), server.wrap_bio(theirs, ours, server_side=True)
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        for _ in range(3):
            for side in (client, impostor):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue


def test_old_tls_is_refused(nodes: SecureNodes) -> None:
    host, _, port = nodes.address("n1").partition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection((host, int(port))) as plain, pytest.raises(OSError):
        context.wrap_socket(plain)


def test_a_peer_without_a_certificate_is_refused_and_told_apart_in_the_log(nodes: SecureNodes) -> None:
    with socket.create_connection(("127.0.0.1", nodes.peer_port("n2"))) as stranger:
        stranger.settimeout(10)
        stranger.sendall(b"\x00\x10holdfast, please")
        try:
            while stranger.recv(4096):
                pass
        except ConnectionError:
            pass
    told = wait_until(lambda: [line for line in nodes.lines("n2") if "tls_mismatch" in str(line)], 90, "the refusal")
    assert told[0]["level"] == "warning"


# --- renewal ----------------------------------------------------------------------------------------------------------


class Writers:
    """Calls without end; `failed` has what any of them was told."""

    def __init__(self, nodes: SecureNodes, bundle: Path) -> None:
        self.done = 0
        self.failed: list[str] = []
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._write(nodes, bundle, number)) for number in range(3)]

    async def _write(self, nodes: SecureNodes, bundle: Path, number: int) -> None:
        async with Client(nodes.endpoints, tls=client_context(bundle), timeout=20) as client:
            while not self._stop.is_set():
                try:
                    body = {"lock_key": f"writer-{number}", "client_id": client.client_id, "lease_time_ms": 30_000}
                    await client.call("POST", "/locks/acquire", body)
                    self.done += 1
                except Exception as error:  # noqa: BLE001 - whatever it is, it is a call that failed
                    self.failed.append(repr(error))
                    return
                with contextlib.suppress(TimeoutError):  # no faster, or the test would measure this machine
                    await asyncio.wait_for(self._stop.wait(), PACE_S)

    async def progress(self) -> None:
        """Each of them wrote since."""
        goal = self.done + 30
        await until(lambda: self.failed or self.done >= goal, "writes", 60)
        assert not self.failed

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)


async def renewed(nodes: SecureNodes, *, hang_up: bool) -> None:
    """What was put there is in use on every node."""
    before = {name: nodes.count(name, "credentials_renewed") for name in NAMES}
    if hang_up:
        for name in NAMES:
            nodes.signal(name, signal.SIGHUP)
    for name in NAMES:
        await until(lambda name=name: nodes.count(name, "credentials_renewed") > before[name], f"{name} renews")


async def restarted(nodes: SecureNodes, name: str) -> None:
    """So that all its links are new ones."""
    nodes.stop(name)
    nodes.start(name)
    await asyncio.to_thread(nodes.wait_ready)


def test_authority_certificates_and_secret_are_replaced_under_writes(nodes: SecureNodes, tmp_path: Path) -> None:
    """By the book (docs/SECURITY.md). No call fails, though every node's links are remade in the middle of it."""
    old, new = nodes.authority, Authority.make(tmp_path / "new", CLUSTER, 30)
    old_client = nodes.client_files("alice")
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes((old.directory / "ca.pem").read_bytes() + (new.directory / "ca.pem").read_bytes())

    async def scenario() -> None:
        writers = Writers(nodes, bundle)
        await writers.progress()
        for name in NAMES:  # first all believe both, noticed without a signal
            nodes.trust(name, bundle)
        await renewed(nodes, hang_up=False)
        nodes.authority = new
        for name in NAMES:  # then each gets its new certificate, and the new secret besides the old one
            nodes.issue(name, new)
            nodes.write(name, "before", nodes.secret)
            nodes.write(name, "secret", "the next secret of this cluster")
            nodes.configure(name, 'previous_secret_file = "before"')
        nodes.signal("n1", signal.SIGHUP)
        await until(lambda: '"cause": "SIGHUP"' in nodes.log("n1"), "n1 renews")
        await restarted(nodes, "n1")  # ahead of the others: it reaches them by the old secret
        await writers.progress()
        await renewed(nodes, hang_up=True)
        await writers.progress()
        for name in NAMES:  # and at last the old ones are believed no more
            nodes.trust(name, new.directory / "ca.pem")
            nodes.configure(name)
        await renewed(nodes, hang_up=True)
        await restarted(nodes, "n3")
        await writers.progress()
        await writers.stop()
        assert not writers.failed

    asyncio.run(scenario())
    with pytest.raises(NoAnswer, match="say --ca"):
        call(Endpoint(nodes.address("n1"), client_context(old.directory / "ca.pem")), "GET", STATUS)
    with pytest.raises(EndpointError):
        nodes.cluster("n1", *old_client)
    assert nodes.cluster("n1", *nodes.client_files("alice"))["leader"]
    # n2 was not restarted, so its gRPC port has taken the new certificate as it ran.
    with grpc.secure_channel(nodes.grpc_address("n2"), grpc.ssl_channel_credentials(nodes.ca.read_bytes())) as channel:
        grpc.channel_ready_future(channel).result(timeout=90)


def test_files_that_do_not_fit_change_nothing(nodes: SecureNodes, tmp_path: Path) -> None:
    key = (nodes.home("n1") / "node.key").read_text()
    other = nodes.authority.node("n1", ["127.0.0.1"], 1, tmp_path, renew=False)
    nodes.write("n1", "node.key", other.key.read_text())
    nodes.signal("n1", signal.SIGHUP)
    told = wait_until(lambda: nodes.events("n1", "renewal_failed"), 90, "the failure in the log")
    assert "the key is not that of the certificate" in told[-1]["reason"]
    assert nodes.cluster("n1")["leader"]
    nodes.write("n1", "node.key", key)


def test_a_key_that_others_can_read_is_not_taken(nodes: SecureNodes) -> None:
    """Found by the look at the files; the node would not start with it again."""
    key = nodes.home("n1") / "node.key"
    open_key = key.with_suffix(".open")
    open_key.write_bytes(key.read_bytes())
    open_key.chmod(0o640)
    open_key.replace(key)
    wait_until(lambda: "chmod 600" in nodes.log("n1"), 90, "the failure in the log")
    assert "can be read by others" in nodes.events("n1", "renewal_failed")[-1]["reason"]
    key.chmod(0o600)


def test_a_certificate_that_ends_soon_is_told(nodes: SecureNodes) -> None:
    """Those of this cluster last a day, its authority thirty."""
    told = wait_until(lambda: nodes.events("n2", "certificate_expires"), 90, "the warning")
    assert {Path(each["file"]).name for each in told} == {"node.pem", "ca.pem"}
    assert told[0]["level"] == "warning"
    assert not nodes.events("n2", "certificate_misses_host")


def told_ends(nodes: SecureNodes, name: str) -> dict[str, float]:
    """By the metrics of the node, of each file."""
    with urllib.request.urlopen(
        f"https://{nodes.address(name)}/metrics", timeout=20, context=client_context(nodes.ca)
    ) as page:
        return {file: float(end) for file, end in _ENDS.findall(page.read().decode())}


def ends(*paths: Path) -> float:
    return min(datetime.fromisoformat(each["not_after"]).timestamp() for path in paths for each in described(path))


def test_metrics_tell_when_the_certificates_in_use_end(nodes: SecureNodes, tmp_path: Path) -> None:
    """Also of ones that came while the node runs; of two authorities, of the one that ends first; not of files that it
    could not take."""
    home = nodes.home("n3")
    assert told_ends(nodes, "n3") == {"cert": ends(home / "node.pem"), "ca": ends(home / "ca.pem")}
    nodes.issue("n3", nodes.authority, days=20)
    in_use = ends(home / "node.pem")
    wait_until(lambda: told_ends(nodes, "n3")["cert"] == in_use, 90, "the new certificate in the metrics")
    shorter = Authority.make(tmp_path / "shorter", CLUSTER, 3)
    nodes.trust("n3", nodes.ca, shorter.directory / "ca.pem")
    wait_until(lambda: told_ends(nodes, "n3")["ca"] == ends(shorter.directory / "ca.pem"), 90, "both authorities")
    nodes.trust("n3", nodes.ca)
    wait_until(lambda: told_ends(nodes, "n3")["ca"] == ends(nodes.ca), 90, "one authority again")

    whole, failures = (home / "node.pem").read_text(), nodes.count("n3", "renewal_failed")
    other = nodes.authority.node("n3", ["127.0.0.1"], 10, tmp_path, renew=False)
    nodes.write("n3", "node.pem", other.certificate.read_text())
    nodes.signal("n3", signal.SIGHUP)
    wait_until(lambda: nodes.count("n3", "renewal_failed") > failures, 90, "the failure in the log")
    assert told_ends(nodes, "n3")["cert"] == in_use
    nodes.write("n3", "node.pem", whole)


# --- what is never told -----------------------------------------------------------------------------------------------


def test_keys_and_secrets_are_in_no_log(nodes: SecureNodes) -> None:
    """The last of this file: at level debug, after all of the above."""
    bodies = ["".join(path.read_text().splitlines()[1:-1]) for path in nodes.directory.rglob("*.key")]
    assert len(bodies) > 4
    hidden = [nodes.secret, "the next secret of this cluster", "PRIVATE KEY", *(body[40:80] for body in bodies)]
    for name in NAMES:
        log = nodes.log(name)
        assert len(log) > 1000
        assert not [each for each in hidden if each in log]
