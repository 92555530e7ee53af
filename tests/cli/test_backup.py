"""`holdfast backup` and `holdfast restore` on real clusters: under load, from any node, and what a new cluster has."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.backups import read_backup
from coordinator.cli import main
from coordinator.devcluster import Layout
from coordinator.endpoint import EndpointError, call
from tests.cli.processes import Up, up
from tests.ports import free_base
from tests.waiting import wait_until

TTL_MS = 600_000


def ask(cluster: Up, method: str, path: str, body: dict[str, Any] | None = None, number: int = 1) -> Any:
    return call(cluster.endpoint(number), method, f"/api/v1{path}", body, 20)


def lock(cluster: Up, key: str, number: int = 1) -> dict[str, Any]:
    body = {"lock_key": key, "client_id": "owner", "lease_time_ms": TTL_MS}
    granted: dict[str, Any] = ask(cluster, "POST", "/locks/acquire", body, number)
    return granted


def lease(cluster: Up, resource_id: str, number: int = 1) -> dict[str, Any]:
    body = {"resource_id": resource_id, "client_id": "owner", "lease_duration_ms": TTL_MS}
    granted: dict[str, Any] = ask(cluster, "POST", "/leases/acquire", body, number)
    return granted


def role(cluster: Up, wanted: str) -> int:
    """The number of a node that leads, or that follows."""

    def found() -> int | None:
        seen = cluster.cluster(1) or cluster.cluster(2) or {"members": []}
        return next((int(each["id"][1:]) for each in seen["members"] if each["role"] == wanted), None)

    return wait_until(found, 90, f"a {wanted}")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    """The exit code, the document and the complaint of one command."""
    capsys.readouterr()
    code = main([*words, "--json"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out else None, out.err


@contextmanager
def writing(cluster: Up) -> Iterator[list[dict[str, Any]]]:
    """Leases being acquired through every node until the end; those that were acknowledged so far."""
    granted: list[dict[str, Any]] = []
    stop = threading.Event()

    def write(number: int) -> None:
        at = 0
        while not stop.is_set():
            granted.append(lease(cluster, f"under-load/{number}/{at}", number))
            at += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    try:
        yield granted
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("kind", ["leader", "follower"])
def test_a_backup_under_load_has_all_that_was_acknowledged_before_it_began(
    cluster: Up, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    file = tmp_path / "state.backup"
    with writing(cluster) as granted:
        wait_until(lambda: len(granted) >= 50, 90, "some writes")
        before = [each["lease_id"] for each in granted]
        revision = ask(cluster, "GET", "/cluster", number=1)["revision"]
        endpoint = cluster.endpoint(role(cluster, kind))
        code, document, complaint = told(capsys, "backup", str(file), "--endpoints", endpoint)
        assert code == 0, complaint
        wait_until(lambda: len(granted) >= len(before) + 20, 90, "writes that go on")
    assert document["revision"] >= revision
    assert sorted(document["members"]) == ["n1", "n2", "n3"]
    assert [each.name for each in tmp_path.iterdir()] == ["state.backup"]
    found = read_backup(file)
    assert (found.sha256, found.header.revision) == (document["sha256"], document["revision"])
    views = found.machine.leases("default", [int(each, 16) for each in before])
    assert all(view is not None and view.state == "ACTIVE" for view in views)
    code, checked, _ = told(capsys, "backup", "--check", str(file))
    assert (code, checked["sha256"], checked["leases"] >= len(before)) == (0, document["sha256"], True)


class Old:
    """What a cluster had when the backup was taken, and what it issued afterwards."""

    def __init__(self, cluster: Up, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        ask(cluster, "PUT", "/resources/a", {"provider": "p", "kind": "file", "pinned": True})
        ask(cluster, "PUT", "/resources/b", {"provider": "p", "kind": "file"})
        ask(cluster, "PUT", "/edges", {"source_resource_id": "a", "target_resource_id": "b"})
        self.session = ask(cluster, "POST", "/sessions", {"client_id": "owner", "ttl_ms": TTL_MS})["session_id"]
        self.locks = [lock(cluster, f"kept/{number}") for number in range(20)]
        self.leases = [lease(cluster, f"used/{number}") for number in range(20)]
        # Its slot is used again after the backup, under the next generation.
        passing = lock(cluster, "passing")
        _release(cluster, passing)
        code, document, complaint = told(capsys, "backup", str(file), "--endpoints", cluster.endpoint(2))
        assert code == 0, complaint
        self.revision = document["revision"]
        _release(cluster, self.locks[0])
        self.later_locks = [lock(cluster, f"later/{number}") for number in range(20)]
        self.later_leases = [lease(cluster, f"later/{number}") for number in range(20)]
        self.later_session = ask(cluster, "POST", "/sessions", {"client_id": "owner", "ttl_ms": TTL_MS})["session_id"]
        grants = [*self.locks, *self.leases, passing, *self.later_locks, *self.later_leases]
        self.greatest_token = max(each["fencing_token"] for each in grants)
        self.last_revision = ask(cluster, "GET", "/cluster")["revision"]


def _release(cluster: Up, granted: dict[str, Any]) -> None:
    names = ("lock_key", "client_id", "fencing_token")
    ask(cluster, "POST", "/locks/release", {name: granted[name] for name in names})


def prepared(directory: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """A new cluster's directories, made from the backup; its ports."""
    bases = free_base(3), free_base(3)
    layout = Layout(directory, 3, *bases)
    layout.write()
    configs = [word for node_id in layout.ids for word in ("--config", str(layout.config_path(node_id)))]
    code, document, complaint = told(capsys, "restore", str(file), "--at", str(int(time.time())), *configs)
    assert code == 0, complaint
    assert set(document["nodes"]) == {"n1", "n2", "n3"}
    return bases


def refused(act: Callable[[], Any]) -> str:
    with pytest.raises(EndpointError) as error:
        act()
    return error.value.code


def test_a_new_cluster_begins_with_the_backup_and_goes_on_above_everything_issued_since(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "state.backup"
    with up(tmp_path / "old") as cluster:
        old = Old(cluster, file, capsys)
    bases = prepared(tmp_path / "new", file, capsys)
    with up(tmp_path / "new", bases=bases) as new:
        for number in (1, 2, 3):
            _has_all(new, old, number)
        _goes_on_above(new, old)
        _knows_nothing_from_after(new, old)
    # And it is a cluster like any other: what it acknowledged is there when it starts again.
    with up(tmp_path / "new", bases=bases) as again:
        _has_all(again, old, 1)
        assert ask(again, "GET", "/locks/begun")["fencing_token"] > old.greatest_token


def _has_all(new: Up, old: Old, number: int) -> None:
    for granted in old.locks:
        found = ask(new, "GET", f"/locks/{granted['lock_key'].replace('/', '%2F')}", number=number)
        assert (found["holder"], found["fencing_token"]) == ("owner", granted["fencing_token"])
    for granted in old.leases:
        found = ask(new, "GET", f"/leases/{granted['lease_id']}", number=number)
        assert found["state"] == "ACTIVE"
        assert 0 < found["ttl_ms"] <= TTL_MS
    assert ask(new, "GET", "/resources/b", number=number)["provider"] == "p"
    (edge,) = ask(new, "GET", "/edges?source=a", number=number)["edges"]
    assert edge["target_resource_id"] == "b"
    ask(new, "POST", f"/sessions/{old.session}/heartbeat", {}, number)


def _goes_on_above(new: Up, old: Old) -> None:
    renewal = {name: old.locks[5][name] for name in ("lock_key", "client_id", "fencing_token")}
    assert ask(new, "POST", "/locks/renew", {**renewal, "extend_time_ms": TTL_MS})["renewed"]
    assert lock(new, "begun")["fencing_token"] > old.greatest_token
    assert lease(new, "begun")["fencing_token"] > old.greatest_token
    assert ask(new, "GET", "/cluster")["revision"] > old.last_revision


def _knows_nothing_from_after(new: Up, old: Old) -> None:
    """Although the new cluster has used those slots again by now, for the same client."""
    for number in range(60):
        lease(new, f"again/{number}")
        ask(new, "POST", "/sessions", {"client_id": "owner", "ttl_ms": TTL_MS})
    for granted in [*old.later_locks, *old.later_leases]:
        message = refused(lambda lease_id=granted["lease_id"]: ask(new, "GET", f"/leases/{lease_id}"))  # type: ignore[misc]
        assert message == "unknown_lease"
    path = f"/sessions/{old.later_session}/heartbeat"
    assert refused(lambda: ask(new, "POST", path, {})) == "unknown_session"
    renewal = {name: old.later_locks[0][name] for name in ("lock_key", "client_id", "fencing_token")}
    late = refused(lambda: ask(new, "POST", "/locks/renew", {**renewal, "extend_time_ms": 1_000}))
    assert late == "not_holder"
    for revision in (old.revision, old.last_revision):
        assert _watched(new, revision) == 410, "a watch that missed what happened must be told"


def _watched(new: Up, revision: int) -> int:
    """The status of a watch that goes on from a revision of the old cluster."""
    address = f"http://{new.endpoint(1)}/api/v1/watch?from_revision={revision}"
    request = urllib.request.Request(address, headers={"Accept": "text/event-stream"})
    with pytest.raises(urllib.error.HTTPError) as error, urllib.request.urlopen(request, timeout=60):
        pass
    with error.value:
        return error.value.code
