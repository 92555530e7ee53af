"""Which lane a command takes: namespaces apart, large ones and clean-ups out of the way of everything else."""

from __future__ import annotations

import pytest

from cluster.lanes import Lane
from cluster.messages import check
from cluster.options import Limits
from cluster.proposer import BACKGROUND_PART
from coordinator.claims import CLAIMED_AT_ONCE
from coordinator.lanes import LARGE, PULSE, SWEEP_REST, lane_of
from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from coordinator.machine.collection import PART, SETTLED
from coordinator.machine.limits import MAX_CLAIMS, MAX_KEYS_PER_ACQUIRE, MAX_NAME_CHARACTERS
from coordinator.machine.tombstonecommands import VerifyCopies
from coordinator.sweeper import LIMIT_MIN

LOCK = c.AcquireLock("k", "a", 1_000)


def test_each_namespace_has_a_lane() -> None:
    assert lane_of("a", LOCK) == (Lane("a"), 1)
    assert lane_of("b", LOCK)[0] != lane_of("a", LOCK)[0]


def test_large_commands_have_a_lane_of_their_own_in_each() -> None:
    names = tuple(f"r{number}" for number in range(LARGE + 1))
    few, many = (c.PutResources(names[:count], "disk", "file") for count in (2, LARGE + 1))
    assert lane_of("a", few)[0] == lane_of("a", LOCK)[0]
    lane, cost = lane_of("a", many)
    assert cost > LARGE
    assert lane not in (lane_of("a", LOCK)[0], lane_of("b", many)[0], lane_of("a", c.ClaimReclaims("d", "w", 9, 9))[0])


@pytest.mark.parametrize(
    "command",
    [c.ClaimReclaims("disk", "w", MAX_CLAIMS, 1_000), c.AckReclaims("w", bytes(8 * MAX_CLAIMS), bytes(8 * MAX_CLAIMS))],
)
def test_clean_ups_are_in_the_background_and_cost_what_they_are_about(command: c.Command) -> None:
    lane, cost = lane_of("a", command)
    assert lane == Lane("a", background=True)
    assert cost > MAX_CLAIMS // 4


@pytest.mark.parametrize(
    "command",
    [
        t.PutShards("q", tuple(map(str, range(10_000)))),
        VerifyCopies("h", ("r",) * 1_000, bytes(8_000), last=True),
        c.AcquireLocks(tuple(map(str, range(MAX_KEYS_PER_ACQUIRE))), "a", 1_000),
        c.BreakLock("k"),
    ],
)
def test_what_is_long_to_apply_and_short_to_send_is_large(command: c.Command) -> None:
    assert lane_of("a", command)[0] == Lane("a\0")


def test_what_the_cluster_proposes_itself_is_no_namespace_s() -> None:
    assert lane_of("default", c.ProposeSet(1, 0, bytes(80), last=True))[0] == Lane("", background=True)
    assert lane_of("default", c.Sweep(PULSE))[0] == Lane("")


def test_a_backlog_is_swept_in_the_background() -> None:
    assert lane_of("default", c.Sweep(PULSE + 1))[0] == Lane("", background=True, rest=SWEEP_REST)


@pytest.mark.parametrize(
    "command",
    [
        c.ClaimReclaims("disk", "w", CLAIMED_AT_ONCE, 1_000),
        c.AckReclaims("w", bytes(8 * CLAIMED_AT_ONCE), bytes(8 * CLAIMED_AT_ONCE)),
        c.ProposeSet(1, 0, bytes(8 * PART), last=True),
        c.SettleSuspects(bytes(8 * SETTLED), 1),
        c.Sweep(LIMIT_MIN),
    ],
)
def test_no_step_of_a_collection_is_more_than_the_share_of_background_work(command: c.Command) -> None:
    assert lane_of("a", command)[1] <= Limits().entry_cost // BACKGROUND_PART


def test_the_longest_namespace_s_lane_may_be_told_to_the_leader() -> None:
    many = c.PutResources(tuple(map(str, range(LARGE + 1))), "disk", "file")
    lane, cost = lane_of("n" * MAX_NAME_CHARACTERS, many)
    check(
        {
            "type": "forward",
            "sequence": 1,
            "incarnation": 1,
            "parts": [(lane.name, lane.background, cost, [b"command"])],
        }
    )
