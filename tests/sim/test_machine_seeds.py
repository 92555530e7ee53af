"""The workloads of the machine as tests: some seeds of each, every checker, and proof that much happened.

The seeds with a name found something once, in the plans that all workloads shared then (`tests.sim --shared`), but for
those that say otherwise.
"""

from __future__ import annotations

import pytest

from tests.sim.batch import counts_of
from tests.sim.clientfaults import KINDS

NO_LEADER_IN_PEACE = 30
"""Of tasks: the leader goes when the faults are over already, and for a while nobody can say what is done."""
JOINED_A_LOST_LEADER = 97
"""Of tasks: a node waits to be asked to join again, and workers must not wait for it."""
SUSPECTS_OF_ONE_THAT_LEFT = 97
"""Of the graph: a node that was removed has suspects for ever, and nobody looks for them."""
CHANGED_MEANWHILE = (18, 36, 57)
"""Of the graph, in its own plans: references change between a search and its proposal, in most runs they do not."""
ASKED_AGAIN_FOR_TASKS = 50
"""Of sdk: an acquire is repeated under its id after its node died, and tasks became ready in between."""
LOST_VERIFICATIONS = (36, 42, 52, 101, 107)
"""Of copies: the answer to a holder's last page is lost, or it asks a node that is gone or no member."""
LOCKS_FOUND = (29, 114, 127, 175, 549, 554, 779)
"""Of locks: requests at two nodes at once one of which hangs up (175), nodes that wait for their disks, a hand-over to
one on slow links (549), a lost greeting (554), a fifth of all frames lost (779)."""
SDK_FOUND = (119, 129, 229)
"""Of sdk: members with names, a slow client's clock beside a fast leader's, a watch at a node that was removed."""
SILENT_WATCH = 504
"""Of sdk, in its own plan: the sum of a watch's silence and a moment was rounded, and it asked again and again."""
SESSION_GIVEN_UP = 632
"""Of sdk, in its own plan: two tasks want what their program still has under a session that it has given up."""
SEEDS = {"locks": 10, "crowds": 6, "graph": 18, "tasks": 12, "copies": 10, "sdk": 11}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_locks_leases_and_sessions() -> None:
    """I1 to I5, I10 to I13, I17."""
    seeds, counts = SEEDS["locks"], counts_of("locks", range(SEEDS["locks"] - 4), shared=LOCKS_FOUND)
    assert counts["leaders"] > 1.5 * seeds, "leaders fall"
    assert counts["operations checked"] > 50 * seeds
    assert counts["grants"] > 10 * seeds and counts["hand-overs"] > 5 * seeds and counts["expiries"] > 5 * seeds
    assert counts["fenced off"] > seeds / 2 and counts["paused"] > seeds
    assert counts["asked again"] > seeds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_crowds() -> None:
    """I2, I3, I4, I15: several have a lock, several locks at once, and more is over than an entry may end."""
    seeds, counts = SEEDS["crowds"], counts_of("crowds", range(SEEDS["crowds"]))
    assert counts["leaders"] > seeds and counts["copies restored"] > 10 * seeds
    assert counts["grants"] > 30 * seeds and counts["expiries"] > 100 * seeds
    assert counts["most holders of one lock"] > 2 * seeds, "locks are shared"
    assert counts["AcquireLocks LocksGranted"] > 5 * seeds and counts["BreakLock LockBroken"] > 3 * seeds


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_reference_graph() -> None:
    """I6, I7, I8: references change while leaders collect, come and go."""
    seeds = SEEDS["graph"]
    drawn = [*range(seeds - 1 - len(CHANGED_MEANWHILE)), *CHANGED_MEANWHILE]
    counts = counts_of("graph", drawn, shared=[SUSPECTS_OF_ONE_THAT_LEFT])
    assert counts["leaders"] > 1.5 * seeds, "leaders fall"
    assert counts["entries"] > 200 * seeds and counts["gone"] > 10 * seeds, "much goes"
    assert counts["condemned"] > 3 * seeds and counts["settled"] > 10 * seeds, "cycles, dead ones and others"
    assert counts["sets refused"] > 3, "references change between the search and the proposal"
    assert counts["edges in the end"] > seeds, "something stays"
    assert counts["snapshots installed"] > 0 and counts["ack ok"] > 10 * seeds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_dispatch() -> None:
    """At least once, one owner at a time, late owners refused."""
    seeds = SEEDS["tasks"]
    counts = counts_of("tasks", range(seeds - 2), shared=[NO_LEADER_IN_PEACE, JOINED_A_LOST_LEADER])
    assert counts["leaders"] > seeds, "leaders fall"
    assert counts["tasks"] > 20 * seeds and counts["complete ok"] > 15 * seeds
    assert counts["bounced"] > 3 * seeds, "owners pause and vanish"
    assert counts["complete not_holder"] > seeds, "late owners are refused"
    assert counts["complete already_done"] > 0, "answers are lost"
    assert counts["shards looked at"] > 300 * seeds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_programs_that_use_the_sdk() -> None:
    """I1, I4, I8, I10, and what watches tell, over HTTP: fault 17 and half-open connections among them."""
    seeds = SEEDS["sdk"]
    drawn = [*range(seeds - 6), SILENT_WATCH, SESSION_GIVEN_UP]
    counts = counts_of("sdk", drawn, shared=[ASKED_AGAIN_FOR_TASKS, *SDK_FOUND])
    assert counts["leaders"] > seeds, "leaders fall"
    for kind in KINDS:
        assert counts[f"fault {kind}"] > 0, f"no fault of kind {kind}: {counts}"
    assert counts["bodies"] > 20 * seeds and counts["operations checked"] > 30 * seeds
    assert counts["use_lock: LockLost"] > seeds / 2, "programs stand still in their bodies"
    assert counts["tasks handled"] > 5 * seeds and counts["events told"] > 200 * seeds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_copies_and_tombstones() -> None:
    """I14: holders offline through delete and tombstone, removed, fenced, back (fault 21)."""
    seeds, counts = SEEDS["copies"], counts_of("copies", range(SEEDS["copies"] - 5), shared=LOST_VERIFICATIONS)
    assert counts["leaders"] > 1.5 * seeds, "leaders fall"
    assert counts["buried"] > 5 * seeds and counts["purged"] == counts["buried"], "all of them went in the end"
    assert counts["offline"] > 3 * seeds and counts["dropped"] > 5 * seeds
    assert counts["fenced"] > seeds and counts["kept"] > 0 and counts["refused to keep"] > 0
    assert counts["refused tombstoned"] > 10 * seeds, "much tries to come back"
