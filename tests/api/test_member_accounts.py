"""GET /cluster/members/{id}: any node tells of any member, as that member tells of itself."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.cli.processes import Up


def get(cluster: Up, node: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{cluster.endpoint(node)}/api/v1{path}", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize("asked", [1, 2])
def test_every_member_is_told_of_by_any_node(cluster: Up, asked: int) -> None:
    told = [get(cluster, asked, f"/cluster/members/n{number}") for number in (1, 2, 3)]
    assert [status for status, _ in told] == [200] * 3
    accounts = [account for _, account in told]
    assert [account["id"] for account in accounts] == ["n1", "n2", "n3"]
    leaders = [account for account in accounts if account["leader_lease"] is not None]
    assert [account["id"] for account in leaders] == [accounts[0]["leader"]]
    assert leaders[0]["leader_lease"] is True and leaders[0]["role"] == "leader"
    for account in accounts:
        assert account["ready"] and account["applied"] <= account["commit"]
        assert account["clock"]["now_ms"] > 0
        assert 0 < account["disk"]["free_bytes"] <= account["disk"]["total_bytes"]
        assert account["disk"]["log_bytes"] > 0
        assert len(account["commits"]["counts"]) == len(account["commits"]["bounds_ms"]) + 1


def test_who_is_no_member_is_not_asked(cluster: Up) -> None:
    status, answer = get(cluster, 1, "/cluster/members/n9")
    assert (status, answer["error"]["code"]) == (404, "not_a_member")
    assert get(cluster, 1, "/cluster/members/n%201")[0] == 400
