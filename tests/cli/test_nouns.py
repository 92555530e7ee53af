"""Each noun of the command line against a live cluster: what it prints for a person, and for a program."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli import main
from coordinator.client import Client
from tests.cli.processes import Up
from tests.waiting import wait_until

Answer = Callable[..., Any]
Text = Callable[..., str]
Run = Callable[..., tuple[int, str, str]]


def call(cluster: Up, method: str, path: str, body: dict[str, Any]) -> Any:
    """For what has no command: a worker's side, and a lock without a command to run."""

    async def ask() -> Any:
        async with Client(f"http://{cluster.endpoint(1)}") as client:
            return await client.call(method, path, body)

    return asyncio.run(ask())


def test_leases(answer: Answer, text: Text, run: Run) -> None:
    got = answer("lease", "acquire", "leases/a", "--ttl", "30")
    renewed = answer("lease", "renew", got["lease_id"], "--client", got["client_id"], "--ttl", "3600")
    assert renewed["ttl_ms"] > 2 * got["ttl_ms"]
    seen = answer("lease", "get", got["lease_id"])
    assert (seen["state"], seen["resource_id"], seen["client_id"]) == ("ACTIVE", "leases/a", got["client_id"])
    assert "on          resource leases/a" in text("lease", "get", got["lease_id"])
    assert "59 min" in text("lease", "get", got["lease_id"])
    listed = answer("lease", "list", "--prefix", "leases/")["leases"]
    assert [each["lease_id"] for each in listed] == [got["lease_id"]]
    assert got["client_id"] in text("lease", "list", "--prefix", "leases/")
    assert "no leases" in text("lease", "list", "--prefix", "nowhere/")
    assert text("lease", "release", "leases/a", "--client", got["client_id"]) == "released; references left: 0\n"
    code, _, told = run("lease", "renew", got["lease_id"], "--client", "another")
    assert (code, told.startswith("holdfast: ")) == (1, True)


def test_sessions(answer: Answer, text: Text, run: Run) -> None:
    begun = answer("session", "create", "--ttl", "600", "--client", "visitor")
    made = begun["session_id"]
    assert (begun["client_id"], 0 < begun["ttl_ms"] <= 600_000) == ("visitor", True)
    answer("lease", "acquire", "sessions/a", "--client", "visitor", "--session", made)
    assert [each["leases"] for each in answer("session", "list")["sessions"] if each["session_id"] == made] == [1]
    assert made in text("session", "list")
    assert answer("session", "get", made)["client_id"] == "visitor"
    assert text("session", "renew", made) == "renewed for 10 min 0 s\n"
    assert text("session", "close", made) == f"session {made} ended, and 1 leases with it\n"
    for words in (("get", "00000000000000ff"), ("renew", made)):
        code, _, told = run("session", *words)
        assert (code, "holdfast session list" in told) == (1, True), told
    another = text("session", "create")
    assert another.splitlines()[2] == "left     1 min 0 s"
    assert text("session", "delete", another.split()[1]).endswith("and 0 leases with it\n")


def test_locks(cluster: Up, answer: Answer, text: Text) -> None:
    for number in range(3):
        body = {"lock_key": f"locks/{number}", "client_id": "h", "lease_time_ms": 600_000}
        call(cluster, "POST", "/locks/acquire", body)
    keys = ["locks/0", "locks/1", "locks/2"]
    assert [each["lock_key"] for each in answer("locks", "list", "--prefix", "locks/")["locks"]] == keys
    assert [
        each["lock_key"] for each in answer("locks", "list", "--prefix", "locks/", "--limit", "2")["locks"]
    ] == keys[:2]
    assert text("locks", "list", "--prefix", "locks/2").splitlines()[1].startswith("locks/2  exclusive  h ")
    assert "nobody waits" in text("locks", "get", "locks/2")
    for client in ("a", "b"):
        body = {"lock_key": "pool/1", "client_id": client, "lease_time_ms": 600_000, "permits": 3}
        call(cluster, "POST", "/locks/acquire", body)
    assert "semaphore of 3  a and 1 other " in text("locks", "list", "--prefix", "pool/"), "not as if a had it alone"
    assert text("locks", "break", "locks/2").split() == ["broken", "locks/2", "holders", "1"]
    assert [each["lock_key"] for each in answer("locks", "list", "--prefix", "locks/")["locks"]] == keys[:2]


def test_resources_edges_and_what_keeps_them(answer: Answer, text: Text, run: Run) -> None:
    put = ("resources", "put", "--provider", "files", "--kind", "segment", "--safety-buffer", "600")
    assert answer(*put, "graph/root one", "--pinned")["created"] is True
    assert answer(*put, "graph/middle")["safety_buffer_ms"] == 600_000
    assert "changed; pinned" in text(*put, "graph/root one", "--pinned")
    assert "graph/leaf registered; kept for 10 min" in text(*put, "graph/leaf")
    assert text("edges", "add", "graph/root one", "graph/middle") == "graph/root one → graph/middle added\n"
    answer("edges", "add", "graph/middle", "graph/leaf", "--on-lost", "orphan")
    assert [each["on_lost"] for each in answer("edges", "list", "--source", "graph/middle")["edges"]] == ["orphan"]
    assert "graph/middle  graph/leaf" in text("edges", "list", "--target", "graph/leaf")

    listed = answer("resources", "list", "--prefix", "graph/", "--provider", "files", "--limit", "2")
    assert len(listed["resources"]) == 2
    assert "--limit" in text("resources", "list", "--prefix", "graph/", "--limit", "2")
    assert "references     1 (0 leases, 1 edges)" in text("resources", "get", "graph/leaf")

    assert text("explain", "graph/leaf").splitlines()[2:] == [
        "pinned: it stays until it is deleted or its lifetime is over",
        "└─ graph/root one",
        "   └─ graph/middle",
        "      └─ graph/leaf",
    ]
    assert answer("explain", "graph/leaf")["path"] == ["graph/root one", "graph/middle", "graph/leaf"]
    change = "delete:resource/graph/root one"
    assert answer("explain", "graph/middle", "--what-if", change)["reclaims_this"] is True
    assert "2 would be reclaimed once" in text("explain", "graph/middle", "--what-if", change)
    assert "graph/leaf would stay" in text("explain", "graph/leaf", "--what-if", change)

    code, _, told = run("resources", "delete", "graph/middle")
    assert (code, "--force" in told) == (1, True), told
    assert answer("resources", "delete", "graph/middle", "--force")["state"] == "reclaiming"
    assert "it waits for the end of its safety buffer" in text("explain", "graph/middle")
    assert answer("edges", "add", "graph/root one", "graph/leaf")["created"] is True
    assert "references left: 0" in text("edges", "remove", "graph/root one", "graph/leaf")


def test_dead_letters(cluster: Up, answer: Answer, text: Text) -> None:
    for name in ("letter/1", "letter/2"):
        answer("resources", "put", name, "--provider", "letters", "--kind", "k", "--safety-buffer", "0")
    give_up(cluster, answer, "letters", 2)
    assert [each["state"] for each in answer("reclaims", "list", "--provider", "letters")["items"]] == ["dead"] * 2
    assert "dies did not report" in text("reclaims", "list", "--provider", "letters", "--state", "dead")
    assert [each["dead"] for each in answer("reclaims", "lanes", "--provider", "letters")["lanes"]] == [2]
    assert answer("reclaims", "retry", "--provider", "letters", "--max", "1") == {"retried": 1, "left": 1}
    assert "it waits for a worker" in text("explain", "letter/1") + text("explain", "letter/2")
    assert text("reclaims", "purge", "--provider", "letters", "--kind", "k") == "1 purged, 0 left\n"
    assert len(answer("reclaims", "list", "--provider", "letters")["items"]) == 1
    assert text("reclaims", "purge", "--provider", "letters") == "0 purged, 0 left\n"


def give_up(cluster: Up, answer: Answer, provider: str, letters: int) -> None:
    """Every worker that gets one is not heard of again."""
    claim = {"provider": provider, "worker_id": "dies", "claim_ms": 100, "wait_ms": 200}

    def all_dead() -> bool:
        call(cluster, "POST", "/reclaims/claim", claim)
        return len(answer("reclaims", "list", "--provider", provider, "--state", "dead")["items"]) == letters

    wait_until(all_dead, 90, "the last attempt")


def test_namespaces(answer: Answer, text: Text, run: Run) -> None:
    assert "made; refuses cycles" in text("namespace", "put", "team", "--leases", "7", "--acyclic")
    changed = answer("namespace", "put", "team", "--locks", "5")
    assert (changed["quotas"]["leases"], changed["quotas"]["locks"], changed["acyclic"]) == (7, 5, True)
    assert answer("namespace", "put", "team", "--cyclic")["acyclic"] is False
    assert "0 / 7" in text("namespace", "list")
    assert text("locks", "list", "--namespace", "team") == "no lock is held\n"
    assert answer("namespace", "delete", "team") == {"deleted": True, "namespace": "team"}
    code, _, told = run("locks", "list", "--namespace", "team")
    assert (code, "holdfast namespace put NAME" in told) == (1, True)


def test_a_watch_tells_and_goes_on(cluster: Up, answer: Answer, text: Text, run: Run) -> None:
    first = answer("status")["revision"] + 1
    for number in range(2):
        body = {"lock_key": f"watched/{number}", "client_id": "w", "lease_time_ms": 600_000}
        call(cluster, "POST", "/locks/acquire", body)
    watch = ("watch", "--prefix", "watched/", "--from", str(first), "--kinds", "lock_granted", "--owner", "w")
    lines = text(*watch, "--count", "2").splitlines()
    assert [line.split()[1:5] for line in lines] == [
        ["lock_granted", f"watched/{number}", "by", "w"] for number in (0, 1)
    ]
    _, out, _ = run(*watch, "--count", "2", "--json")
    documents = [json.loads(line) for line in out.splitlines()]
    assert [each["key"] for each in documents] == ["watched/0", "watched/1"]
    after = text("watch", "--prefix", "watched/", "--after", documents[0]["id"], "--count", "1")
    assert after == lines[1] + "\n"


def test_the_cluster_itself(cluster: Up, answer: Answer, text: Text, run: Run) -> None:
    seen = answer("status")
    assert {each["lag"] is not None for each in seen["members"]} == {True}
    assert text("member", "list").splitlines()[2].split()[:5] == ["ID", "ROLE", "TERM", "APPLIED", "LAG"]
    heir = next(each["id"] for each in seen["members"] if each["id"] != seen["leader"])
    assert answer("transfer", "--to", heir)["leader"] == heir
    assert answer("transfer", seen["leader"])["leader"] == seen["leader"]
    code, _, told = run("transfer", seen["leader"])
    assert (code, f"{seen['leader']} leads already" in told) == (1, True), told
    for words in (("member", "remove", "n9"), ("member", "remove", "n 9/x?y"), ("transfer", "--to", "n9")):
        code, _, told = run(*words)
        assert (code, told.endswith(". Nothing was changed.\n")) == (1, True), told
        code, _, told = run(*words, "--json")
        error = json.loads(told)["error"]
        assert (error["outcome"], bool(error["code"])) == ("denied", True)
    assert answer("snapshot", "--endpoint", cluster.endpoint(2))["endpoint"].endswith(cluster.endpoint(2))


def test_the_self_test_counts_all_it_did(answer: Answer, text: Text) -> None:
    locks, beats = answer("bench", "--running", "--seconds", "0.5", "--workers", "4")["results"]
    assert locks["done"] == locks["rounds"] > 0
    assert beats["done"] == 1_000 * beats["rounds"] > 0
    assert text("bench", "--running", "--seconds", "0.1", "--workers", "1").splitlines()[0].split()[:2] == ["WHAT", "A"]


def test_a_configuration_is_checked(tmp_path: Path, cluster: Up, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["config", "check", str(cluster.data / "n1.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["members"] == ["n1", "n2", "n3"]
    wrong = tmp_path / "node.toml"
    wrong.write_text('nod_id = "n1"')
    assert main(["config", "check", str(wrong)]) == 1
    assert "did you mean node_id?" in capsys.readouterr().err
