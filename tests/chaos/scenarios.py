"""What is done to the containers, and what must hold afterwards. Each scenario starts and ends with a whole cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial

from cluster.options import Timing
from coordinator.client import OutcomeUnknown, SyncClient, Unavailable, clock
from tests.chaos.containers import COMPOSED, SETTLE_S, ChaosError, Containers
from tests.chaos.disks import fill, make_room, start_on_small_disk, wait_until_stopped_itself
from tests.waiting import wait_until

Scenario = Callable[[Containers], str]
"""Returns one line saying what was seen."""

FIRST = "n1"
"""Never replaced: the compose file's `join` asks it."""
STALL_S = (Timing().election_min - Timing().heartbeat) / 2
"""On a host that is late by so much with a leader, and again with a follower, heartbeats are late by a whole Δ."""
PAST_LEASE_MS = round(4 * Timing().election_max * 1000)
"""Of cluster time: longer than any lease, promise or election timeout of one that missed it."""
BALLAST = "ballast"
STRAY = "n5"
"""Is killed before it is removed, so that it does not learn of it, and started again."""
PIECES, PIECE_BYTES = 8, 200_000
"""What is written to use up the room of a log."""


def others(containers: Containers, node: str) -> list[str]:
    return [each for each in containers.nodes if each != node]


# --- kill, pause, restart, disconnect ---------------------------------------------------------------------------------


def kill_the_leader(containers: Containers) -> str:
    leader, term = containers.wait_for_leader(containers.nodes)
    containers.kill(leader)
    successor, new_term = containers.wait_for_leader(others(containers, leader), newer_than=term)
    containers.start(leader)
    return f"{leader} killed in term {term}, {successor} leads term {new_term}, {leader} is back"


def kill_a_follower(containers: Containers) -> str:
    leader, term = containers.wait_for_leader(containers.nodes)
    follower = others(containers, leader)[-1]
    containers.kill(follower)
    containers.wait_for_leader(others(containers, follower))
    containers.start(follower)
    return f"{follower} killed in term {term} while {leader} led"


def kill_all(containers: Containers) -> str:
    before = containers.wait_until_whole()
    containers.kill(*containers.nodes)
    containers.start(*containers.nodes)
    after = containers.wait_until_whole()
    if after["revision"] < before["revision"] or after["term"] < before["term"]:
        raise ChaosError(f"the log went back from {before['revision']} to {after['revision']}")
    return f"all killed at revision {before['revision']}, back at {after['revision']}"


def kill_all_and_stagger(containers: Containers) -> str:
    """One after the other comes back: nobody leads before a quorum is there, and the last finds a leader."""
    before = containers.wait_until_whole()
    containers.kill(*containers.nodes)
    quorum, order = len(containers.nodes) // 2 + 1, list(reversed(containers.nodes))
    for place, node in enumerate(order, start=1):
        containers.start(node)
        wait_until(partial(containers.cluster, node), SETTLE_S, f"{node} to answer", 0.1)
        if place >= quorum:
            containers.wait_for_leader(order[:place], newer_than=before["term"])
    after = containers.wait_until_whole()
    if after["revision"] < before["revision"]:
        raise ChaosError(f"the log went back from {before['revision']} to {after['revision']}")
    return f"all killed at revision {before['revision']}, back one by one at {after['revision']}"


def pause_the_leader(containers: Containers) -> str:
    leader, term = containers.wait_for_leader(containers.nodes)
    containers.pause(leader)
    try:
        successor, new_term = containers.wait_for_leader(others(containers, leader), newer_than=term)
    finally:
        containers.unpause(leader)
    return f"{leader} paused in term {term}, {successor} leads term {new_term}, {leader} follows it"


def restart_the_leader(containers: Containers) -> str:
    leader, term = containers.wait_for_leader(containers.nodes)
    containers.restart(leader)
    successor, new_term = containers.wait_for_leader(containers.nodes, newer_than=term)
    return f"{leader} restarted in term {term}, {successor} leads term {new_term}"


def disconnect_the_leader(containers: Containers) -> str:
    """A member that was cut off must not disturb the one that took over."""
    leader, term = containers.wait_for_leader(containers.nodes)
    containers.cut(leader)
    try:
        wait_until_unready(containers, leader)  # its HTTP port is still open: it must not pass for a serving node
        led, since = containers.wait_for_leader(others(containers, leader), newer_than=term), clock.now()
    finally:
        containers.mend(leader)
    return f"{leader} cut off in term {term}, {led[0]} leads term {led[1]} {undisturbed(containers, led, since)}"


def pause_a_follower(containers: Containers) -> str:
    """Past every promise that it made; then it goes on with the frames that it had not read."""
    led, since = containers.wait_for_leader(containers.nodes), clock.now()
    follower = others(containers, led[0])[0]
    containers.pause(follower)
    try:
        wait_past_lease(containers, others(containers, follower))
    finally:
        containers.unpause(follower)
    return f"{follower} paused while {led[0]} led term {led[1]} {undisturbed(containers, led, since)}"


def disconnect_a_follower(containers: Containers) -> str:
    led, since = containers.wait_for_leader(containers.nodes), clock.now()
    follower = others(containers, led[0])[-1]
    containers.cut(follower)
    try:
        wait_until_unready(containers, follower)
        wait_past_lease(containers, others(containers, follower))
    finally:
        containers.mend(follower)
    return f"{follower} cut off while {led[0]} led term {led[1]} {undisturbed(containers, led, since)}"


def undisturbed(containers: Containers, led: tuple[str, int], since: float) -> str:
    """Who comes back must not move leader or term. Only a host that stood still, as felt here, may have."""
    containers.wait_until_whole()
    now, stall_s = containers.wait_for_leader(containers.nodes), containers.longest_stall_s(since)
    if now == led:
        return "and still did when all were back"
    told = f"{led[0]} led term {led[1]}; when all were back {now[0]} led term {now[1]}"
    if stall_s < STALL_S:
        raise ChaosError(f"{told}: one that came back disturbed it (this host was late by {stall_s:.2f} s at worst)")
    return f"({told}, but this host stood still for {stall_s:.2f} s meanwhile)"


def wait_past_lease(containers: Containers, among: list[str]) -> None:
    def now_ms() -> int:
        return max(map(containers.now_ms, among))

    began_ms = wait_until(now_ms, SETTLE_S, f"one of {', '.join(among)} to tell its clock")
    wait_until(lambda: now_ms() > began_ms + PAST_LEASE_MS, SETTLE_S, "the cluster clock to pass every lease", 0.1)


def wait_until_unready(containers: Containers, node: str) -> None:
    wait_until(lambda: not containers.ready(node), SETTLE_S, f"{node}, cut off, to say that it is not ready", 0.2)


def rolling_restart(containers: Containers) -> str:
    before = containers.wait_until_whole()["term"]
    for node in list(containers.nodes):
        containers.restart(node)
        containers.wait_until_whole()
    after = containers.wait_until_whole()["term"]
    return f"every node restarted with SIGTERM, terms {before} to {after}"


# --- members ----------------------------------------------------------------------------------------------------------


def replace_a_member(containers: Containers) -> str:
    """Its disk is gone. A new node on a small disk takes its place under a new id, as docs/OPERATIONS.md says."""
    lost = others(containers, FIRST)[0]
    new = containers.new_node()
    containers.destroy(lost)
    start_on_small_disk(containers, new)
    containers.wait_for_leader(others(containers, lost))
    addresses = ("--peer", f"{new}-peer:7200", "--http", f"{new}:7100")
    containers.holdfast("member", "replace", lost, new, *addresses, node=FIRST)
    containers.nodes = [*others(containers, lost), new]
    members = containers.wait_until_whole()["members"]
    return f"{lost} lost its disk, {new} took its place among {len(members)}"


def fill_a_disk(containers: Containers) -> str:
    """The node stops itself before it promises what it cannot keep; the others go on; with room again it is back."""
    small = next(node for node in containers.nodes if node not in COMPOSED)
    led = containers.wait_for_leader(containers.nodes)[0] == small
    began_s = time.time()
    fill(containers, small)
    try:
        write_much(containers)
        wait_until_stopped_itself(containers, small, began_s)
        successor, term = containers.wait_for_leader(others(containers, small))
    finally:
        make_room(containers, small)
    containers.restart(small)
    containers.wait_until_whole()
    what = "the leader" if led else "a follower"
    return f"the disk of {small}, {what}, was full and it stopped itself; {successor} led term {term}; it is back"


def write_much(containers: Containers) -> None:
    """More than the room that a log makes ahead of what it has: only behind that does it meet the full disk."""
    client = SyncClient(containers.endpoints, client_id="chaos-ballast", timeout=60)
    with client, contextlib.suppress(Unavailable, OutcomeUnknown):
        client.queues.put(BALLAST)
        pieces = [client.queues.enqueue(BALLAST, "x" * PIECE_BYTES) for _ in range(PIECES)]
        for piece in pieces:
            client.queues.drop(BALLAST, piece.task_id)


def grow_to_five(containers: Containers) -> str:
    """By the compose file: two more nodes, and the service that has the cluster take them in."""
    containers.bring_up("n4", "n5", "join", profile="five")
    containers.nodes = sorted([*containers.nodes, "n4", "n5"])
    members = containers.wait_until_whole()["members"]
    return f"{len(members)} members, each with a vote"


def shrink_to_three(containers: Containers) -> str:
    """One member at a time; one that leads hands over first."""
    seen = ""
    for node in ("n5", "n4"):
        if containers.wait_for_leader(containers.nodes)[0] == node:
            containers.holdfast("transfer", FIRST, node=FIRST)
        if node == STRAY:
            containers.kill(node)
        containers.holdfast("member", "remove", node, node=FIRST)
        containers.nodes = others(containers, node)
        containers.wait_until_whole()
        seen = removed_member_campaigns(containers, node) if node == STRAY else seen
        containers.destroy(node)
    return f"{len(containers.wait_until_whole()['members'])} members are left; {seen}"


def removed_member_campaigns(containers: Containers, stray: str) -> str:
    """By its own disk it is a member, and nobody leads. The others must not care: neither leader nor term moves."""
    wait_past_lease(containers, containers.nodes)  # the leader tells who was just removed of it
    led, since = containers.wait_for_leader(containers.nodes), clock.now()
    containers.start(stray)
    containers.strays = [stray]

    def alone() -> bool:
        seen = containers.cluster(stray)
        return seen is not None and seen["leader"] is None and any(each["id"] == stray for each in seen["members"])

    wait_until(alone, SETTLE_S, f"{stray} to be up, a member by its own account, without a leader", 0.05)
    wait_past_lease(containers, containers.nodes)
    told = undisturbed(containers, led, since)
    containers.strays = []
    return f"{stray}, removed without its knowledge, was started again: {led[0]} led term {led[1]} {told}"


SHORT: tuple[Scenario, ...] = (
    kill_the_leader,
    pause_the_leader,
    disconnect_the_leader,
    pause_a_follower,
    disconnect_a_follower,
    rolling_restart,
    replace_a_member,
    fill_a_disk,
    kill_all_and_stagger,
    grow_to_five,
    shrink_to_three,
)
ROUND: tuple[Scenario, ...] = (
    kill_the_leader,
    kill_a_follower,
    pause_the_leader,
    pause_a_follower,
    disconnect_the_leader,
    disconnect_a_follower,
    restart_the_leader,
    rolling_restart,
    replace_a_member,
    fill_a_disk,
    kill_all,
    kill_all_and_stagger,
    grow_to_five,
    kill_the_leader,
    pause_the_leader,
    disconnect_the_leader,
    shrink_to_three,
)
"""In this order, several times over."""
ROLLING = rolling_restart.__name__
