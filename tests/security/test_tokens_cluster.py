"""Tokens in a cluster of real processes: on every node, over both interfaces, after a leader's death, and hidden."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from coordinator.rpc.messages import CLASSES, PACKAGE
from coordinator.tokens import digest_of
from tests.cli.processes import REPOSITORY
from tests.rpc.nodes import NODES, RpcNodes, refusal
from tests.waiting import wait_until

ACT = {"lock_key": "t/k", "client_id": "tenant/1", "lease_time_ms": 60_000}


class GuardedNodes(RpcNodes):
    """All ask for tokens. `http` carries the root's unless it is given another."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.root_file = directory / "root.token"
        self.outputs: list[str] = []
        self.run_cli("token", "root", str(self.root_file))
        self.root = self.root_file.read_text().strip()
        for number in NODES:
            told = self.config(number).read_text()
            digest = directory / f"root-{number}"
            # One node is given the token, the others no more than its digest.
            digest.write_text(self.root if number == 1 else f"sha256:{digest_of(self.root).hex()}\n")
            digest.chmod(0o600)
            self.config(number).write_text(f'tokens = "required"\nroot_token_file = "{digest.name}"\n{told}')

    def run_cli(self, *words: str, token_file: Path | None = None, code: int = 0) -> str:
        environment = {**os.environ, "HOLDFAST_ENDPOINTS": ",".join(f"127.0.0.1:{p[0]}" for p in self._ports.values())}
        if token_file is not None:
            environment["HOLDFAST_TOKEN_FILE"] = str(token_file)
        command = [sys.executable, "-m", "coordinator.cli", *words]
        run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        self.outputs += [run.stdout, run.stderr]
        assert run.returncode == code, run
        return run.stdout.strip()

    def http(self, number: int, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        address = f"http://127.0.0.1:{self._ports[number][0]}{path}"
        headers = {"Authorization": f"Bearer {token or self.root}"}
        payload = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, payload, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer) if "json" in answer.headers["Content-Type"] else answer.read()

    def status(self, number: int, token: str, path: str = "/api/v1/locks/acquire", body: Any = None) -> int:
        try:
            self.http(number, "POST", path, body or ACT, token)
        except urllib.error.HTTPError as error:
            self.outputs.append(error.read().decode())
            return error.code
        return 200


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedNodes]:
    running = GuardedNodes(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.end()


@pytest.mark.timeout(180)
def test_tokens_in_a_cluster(guarded: GuardedNodes) -> None:
    """One cluster for all of it: starting one is what takes time."""
    scope = ["--identity", "tenant", "--scope", "default:write:t/", "--bind"]
    kept_file, revoked_file = guarded.directory / "kept.token", guarded.directory / "revoked.token"
    for file in (kept_file, revoked_file):
        guarded.run_cli("token", "create", *scope, "--out", str(file), token_file=guarded.root_file)
    kept, revoked = kept_file.read_text().strip(), revoked_file.read_text().strip()
    assert kept_file.stat().st_mode & 0o777 == 0o600
    # One that could not be written down is not made.
    lost = guarded.directory / "none" / "lost.token"
    guarded.run_cli("token", "create", *scope, "--out", str(lost), token_file=guarded.root_file, code=1)
    assert len(guarded.http(1, "GET", "/api/v1/tokens")["tokens"]) == 2

    # On every node at once, also on those that have not applied it yet.
    assert [guarded.status(number, kept) for number in NODES] == [200] * 3
    assert [guarded.status(number, kept, body={**ACT, "lock_key": "other"}) for number in NODES] == [403] * 3
    assert guarded.status(guarded.follower(), kept, "/api/v1/cluster/transfer", {"target": "n1"}) == 403
    guarded.run_cli("locks", "list", token_file=kept_file)
    guarded.run_cli("locks", "list", code=1)
    guarded.run_cli("token", "list", token_file=kept_file, code=1)
    _over_grpc(guarded, kept)

    # What only the leader can do is passed on with its token.
    asked = {"target": f"n{guarded.follower()}"}
    guarded.http(guarded.follower(), "POST", "/api/v1/cluster/transfer", asked)
    _revoked_everywhere(guarded, revoked)
    backup = guarded.http(guarded.follower(), "GET", "/api/v1/backup")
    _nowhere_in_the_clear(guarded, backup, kept, revoked, guarded.root)

    leader = guarded.leader()
    guarded.send(leader, signal.SIGKILL)
    guarded.processes[leader].wait()
    wait_until(lambda: guarded.status(guarded.alive[0], kept) == 200, 90, "a new leader that knows the token")
    assert [guarded.status(number, kept) for number in guarded.alive] == [200] * 2
    assert [guarded.status(number, revoked) for number in guarded.alive] == [401] * 2
    told = guarded.run_cli("audit", token_file=guarded.root_file)
    assert "token.revoke" in told and "leader.transfer" in told and "cluster.backup" in told


def _revoked_everywhere(guarded: GuardedNodes, token: str) -> None:
    token_id = token.split("_")[1]
    guarded.run_cli("token", "revoke", token_id, token_file=guarded.root_file)
    revision = guarded.http(guarded.leader(), "GET", "/api/v1/cluster")["revision"]

    def applied() -> bool:
        views = [guarded.http(number, "GET", "/api/v1/cluster") for number in guarded.alive]
        return all(view["revision"] >= revision for view in views)

    wait_until(applied, 90, "every node to have applied it")
    assert [guarded.status(number, token) for number in guarded.alive] == [401] * len(guarded.alive)


def _over_grpc(guarded: GuardedNodes, token: str) -> None:
    channel = guarded.channel(guarded.follower())
    acquire = channel.unary_unary(
        f"/{PACKAGE}.DistributedGCService/AcquireLease",
        request_serializer=CLASSES["AcquireLeaseRequest"].SerializeToString,
        response_deserializer=CLASSES["AcquireLeaseResponse"].FromString,
    )
    renew = channel.unary_unary(
        f"/{PACKAGE}.DistributedGCService/RenewLease",
        request_serializer=CLASSES["RenewLeaseRequest"].SerializeToString,
        response_deserializer=CLASSES["RenewLeaseResponse"].FromString,
    )

    def asked(resource_id: str, client_id: str = "tenant/1") -> Any:
        return CLASSES["AcquireLeaseRequest"](resource_id=resource_id, client_id=client_id, lease_duration_ms=60_000)

    metadata = [("authorization", f"Bearer {token}")]
    own = acquire(asked("t/r"), timeout=30, metadata=metadata).lease_id
    assert refusal(acquire, asked("t/r"))[0] is grpc.StatusCode.UNAUTHENTICATED
    assert refusal(acquire, asked("other"), metadata=metadata)[0] is grpc.StatusCode.PERMISSION_DENIED
    assert refusal(acquire, asked("t/r", "tenant2"), metadata=metadata)[0] is grpc.StatusCode.PERMISSION_DENIED
    # A lease on a key that is out of its reach is as unknown as one that never was.
    root = [("authorization", f"Bearer {guarded.root}")]
    foreign = acquire(asked("other"), timeout=30, metadata=root).lease_id
    mine, theirs = (
        CLASSES["RenewLeaseRequest"](lease_id=each, client_id="tenant/1", extend_duration_ms=60_000)
        for each in (own, foreign)
    )
    assert not renew(theirs, timeout=30, metadata=metadata).success
    assert renew(theirs, timeout=30, metadata=root).success
    stream = channel.stream_stream(
        f"/{PACKAGE}.LeaseRenewalService/RenewLeases",
        request_serializer=CLASSES["RenewLeaseRequest"].SerializeToString,
        response_deserializer=CLASSES["RenewLeaseResponse"].FromString,
    )
    answers = stream(iter((mine, theirs, mine)), timeout=30, metadata=metadata)
    assert [each.success for each in answers] == [True, False, True]
    with pytest.raises(grpc.RpcError) as refused:
        list(stream(iter((mine,)), timeout=30))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def _nowhere_in_the_clear(guarded: GuardedNodes, backup: bytes, *tokens: str) -> None:
    guarded.http(guarded.leader(), "POST", "/api/v1/cluster/snapshot", {})
    seen = {
        "the backup": backup,
        "what was printed": "".join(guarded.outputs).encode(),
        **{
            str(each): each.read_bytes()
            for number in NODES
            for each in (guarded.directory / f"n{number}").rglob("*")
            if each.is_file()
        },
        **{f"the log of n{number}": guarded.log(number).encode() for number in NODES},
    }
    for path in ("/metrics", "/api/v1/telemetry", "/api/v1/tokens", "/api/v1/audit"):
        answer = guarded.http(guarded.leader(), "GET", path)
        seen[path] = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    assert any(digest_of(tokens[0]) in content for content in seen.values()), "the digest is looked for where it is"
    for where, content in seen.items():
        for token in tokens:
            assert token.rpartition("_")[2].encode() not in content, where
