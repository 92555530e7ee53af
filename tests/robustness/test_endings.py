"""What is looked at on the nodes: a lost lease, a lock that stays, and a second leader of a term are found."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from tests.checkers.refused_in_time import RefusedInTime
from tests.checkers.violation import Violation
from tests.robustness.asking import LOOK_S, Lateness, Nodes
from tests.robustness.endings import OWNER, Kept, Leaders
from tests.robustness.leaseclients import hex_id
from tests.robustness.processes import Processes
from tests.waiting import until


class Told:
    """Nodes that answer what they are given; `lost`: the lease and the lock that the second one does not have."""

    names = ("n1", "n2")

    def __init__(self, lost: str = "") -> None:
        self._lost = lost

    async def ask(self, node: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        lacks = self._lost if node == "n2" else ""
        if body is not None:
            states = ["EXPIRED" if lacks == "lease" else "ACTIVE" for _ in body["lease_ids"]]
            pairs = zip(body["lease_ids"], states, strict=True)
            return {"leases": [{"lease_id": lease_id, "state": state} for lease_id, state in pairs]}
        token = 8 if lacks == "lock" else 7
        return {"locks": [{"lock_key": "kept/1", "holder": OWNER, "fencing_token": token}]}


async def checked(lost: str) -> None:
    kept = Kept(Nodes([], lambda _node, _since: False), "kept", 1, lambda *_: None)
    kept.leases, kept.tokens = {"kept/1.0": int(hex_id(5), 16)}, {"kept/1": 7}
    await kept.check(cast(Processes, Told(lost)))


def test_what_is_kept_passes() -> None:
    asyncio.run(checked(""))


@pytest.mark.parametrize("lost", ["lease", "lock"])
def test_what_one_node_has_lost_is_found(lost: str) -> None:
    with pytest.raises(Violation, match=f"n2 has lost {lost}s"):
        asyncio.run(checked(lost))


def test_a_second_leader_of_a_term_is_found() -> None:
    leaders = Leaders()
    leaders.told({"n1": {"leader": "n1", "term": 3}, "n2": {"leader": "n1", "term": 3}, "n3": None})
    leaders.told({"n2": {"leader": "n2", "term": 4}})
    assert leaders.of_term == {3: "n1", 4: "n2"}
    with pytest.raises(Violation, match="n1 and n2 both lead in term 3"):
        leaders.told({"n2": {"leader": "n2", "term": 3}})


def test_two_leases_of_leaders_at_one_moment_are_a_violation() -> None:
    leaders = Leaders()
    leaders.has_lease("n1", 3, asked_s=1.0, told_s=1.1)
    leaders.has_lease("n2", 4, asked_s=2.0, told_s=2.1)
    leaders.has_lease("n1", 3, asked_s=2.05, told_s=9.0)  # it may have said so before the other had one
    leaders.has_lease("n2", 4, asked_s=2.2, told_s=2.3)
    assert leaders.leases == 4
    with pytest.raises(Violation, match="after n2 had that of 4"):
        leaders.has_lease("n1", 3, asked_s=2.2, told_s=2.3)


def test_a_machine_that_has_much_to_do_may_take_longer_and_not_for_ever() -> None:
    in_time = RefusedInTime[int](2.0, lambda _node, _since: False, lambda: 1.5)
    in_time.ended(1, 10.0, 13.4)
    assert in_time.slowest_s == pytest.approx(3.4)
    with pytest.raises(Violation, match="neither answered nor refused"):
        in_time.ended(1, 10.0, 13.6)


def test_what_was_forgiven_once_is_not_forgiven_again() -> None:
    graces_s = iter([4.0, 0.0])
    in_time = RefusedInTime[int](2.0, lambda _node, _since: False, lambda: next(graces_s))
    in_time.ended(1, 10.0, 15.0)
    with pytest.raises(Violation, match=r"neither answered nor refused for 4\.9 s"):
        in_time.ended(1, 20.0, 24.9)


def test_a_machine_that_comes_late_to_everything_has_more_time() -> None:
    async def scenario() -> float:
        lateness = Lateness()
        watching = asyncio.ensure_future(lateness.watch())
        await asyncio.sleep(0)
        until_s = time.monotonic() + 4 * LOOK_S
        while time.monotonic() < until_s:
            pass
        await until(lambda: lateness.late_s > 0, "it to be seen")
        watching.cancel()
        return lateness.late_s

    assert Lateness().late_s == 0
    assert asyncio.run(scenario()) >= 2 * LOOK_S
