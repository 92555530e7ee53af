"""`holdfast tombstones` and `holdfast holders` against a live cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cli.processes import Up
from tests.cli.test_nouns import call
from tests.waiting import wait_until

Answer = Callable[..., Any]
Text = Callable[..., str]
Run = Callable[..., tuple[int, str, str]]


def test_tombstones_and_holders(cluster: Up, answer: Answer, text: Text, run: Run) -> None:
    about = {"provider": "stones", "kind": "k", "safety_buffer_ms": 0, "pinned": True}
    call(cluster, "PUT", "/resources/stones%2Fa", about)
    call(cluster, "POST", "/resources/stones%2Fa/holders", {"holder_id": "cli-holder"})
    call(cluster, "DELETE", "/resources/stones%2Fa?force=true", {})
    claim = {"provider": "stones", "worker_id": "w", "wait_ms": 20_000}
    (item,) = wait_until(lambda: call(cluster, "POST", "/reclaims/claim", claim)["items"], 90, "the clean-up")
    told = {"worker_id": "w", "reclaim_id": item["reclaim_id"], "token": item["token"]}
    call(cluster, "POST", "/reclaims/ack", told)
    (seen,) = [each for each in answer("tombstones", "list")["tombstones"] if each["resource_id"] == "stones/a"]
    assert (seen["waiting_for"], seen["holders_estimate"]) == (["cli-holder"], 1)
    assert "cli-holder" in text("tombstones", "list")
    later = answer("tombstones", "list", "--after-revision", str(seen["revision"]))["tombstones"]
    assert seen["resource_id"] not in [each["resource_id"] for each in later]
    (holder,) = [each for each in answer("holders", "list")["holders"] if each["holder_id"] == "cli-holder"]
    assert holder["behind"] >= 1
    assert "cli-holder" in text("holders", "list", "--limit", "1000")
    assert text("holders", "remove", "cli-holder").startswith("cli-holder removed at ")
    code, _, said = run("holders", "remove", "cli-holder")
    assert (code, "no holder" in said) == (1, True)
    wait_until(lambda: "stones/a" not in text("tombstones", "list"), 90, "the purge")
