"""What a tombstone tells of its holders: whoever reads one prefix learns how many it waits for, and not their names."""

from __future__ import annotations

import pytest

from coordinator.machine import commands as c
from coordinator.machine.accesscommands import Right
from coordinator.machine.tombstonecommands import RegisterCopy
from tests.http.graph import CLAIM, put
from tests.security.doorway import API, Door, behind_the_door

SECRET, OWN = "others/holder-42", "bob/1"


async def died(door: Door) -> None:
    """Of two resources with holders, the one under b/; both holders are waited for."""
    door.host.run(put("a/kept", "b/dead"))
    door.host.run(RegisterCopy("a/kept", SECRET), RegisterCopy("b/dead", OWN))
    door.host.run(c.DeleteResource("b/dead", force=True))
    (item,) = (await door.ask(door.root, "POST", f"{API}/reclaims/claim", CLAIM))[1]["items"]
    told = {"worker_id": "w", "reclaim_id": item["reclaim_id"], "token": item["token"]}
    assert (await door.ask(door.root, "POST", f"{API}/reclaims/ack", told))[0] == 200


@pytest.mark.parametrize(
    ("right", "prefix", "bound", "named"),
    [
        ("read", "b/", False, []),
        ("admin", "b/", False, []),
        ("read", "b/", True, [OWN]),
        ("read", "", False, [SECRET, OWN]),
        ("read", "", True, [SECRET, OWN]),
    ],
)
def test_whom_it_waits_for_is_told_to_who_may_know_them(
    right: Right, prefix: str, bound: bool, named: list[str]
) -> None:
    async def scenario(door: Door) -> None:
        await died(door)
        token = door.token(("default", right, prefix), bound=bound)
        status, answer = await door.ask(token, "GET", f"{API}/tombstones")
        (seen,) = answer["tombstones"]
        assert (status, seen["resource_id"], seen["waiting"]) == (200, "b/dead", 2)
        assert sorted(seen["waiting_for"]) == sorted(named)

    behind_the_door(scenario)


def test_no_other_answer_about_copies_names_them() -> None:
    async def scenario(door: Door) -> None:
        await died(door)
        for bound in (False, True):
            token = door.token(("default", "write", "b/"), bound=bound)
            holder = {"holder_id": OWN}
            for method, path, body in (
                ("GET", "/tombstones", None),
                ("GET", "/tombstones?limit=1", None),
                ("GET", "/holders", None),
                ("GET", f"/holders/{OWN}", None),
                ("POST", "/resources/b%2Fdead/holders", holder),
                ("PUT", "/resources/b%2Fdead", {"provider": "files", "kind": "segment"}),
                ("POST", "/tombstones/ack", {**holder, "holder_token": 1, "revision": 1}),
                ("POST", f"/holders/{OWN}/verify", {"copies": [], "holder_token": 1}),
                ("DELETE", f"/holders/{OWN}?holder_token=1", None),
            ):
                _, answer = await door.ask(token, method, API + path, body)
                assert SECRET not in str(answer), (method, path, answer)

    behind_the_door(scenario)
