"""What is done to the containers, and what must hold afterwards. Each scenario starts and ends with a whole cluster."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.containers import Containers
from tests.waiting import wait_until

Scenario = Callable[[Containers], str]
"""Returns one line saying what was seen."""

CUT_OFF_S = 10


def kill_the_leader(containers: Containers) -> str:
    leader, term = containers.wait_for_leader(containers.nodes)
    containers.kill(leader)
    rest = [node for node in containers.nodes if node != leader]
    successor, new_term = containers.wait_for_leader(rest, newer_than=term)
    containers.compose("start", leader)
    return f"{leader} killed in term {term}, {successor} leads term {new_term}, {leader} is back"


def cut_the_leader_off(containers: Containers) -> str:
    leader, term = containers.wait_for_leader(containers.nodes)
    containers.cut(leader)
    rest = [node for node in containers.nodes if node != leader]
    successor, new_term = containers.wait_for_leader(rest, newer_than=term)
    # Its HTTP port is still open: it must not pass for a serving node.
    wait_until(lambda: not containers.ready(leader), CUT_OFF_S, f"{leader}, cut off, to say that it is not ready", 0.2)
    containers.mend(leader)
    containers.wait_until_whole()
    healed, healed_term = containers.wait_for_leader(containers.nodes)
    if (healed, healed_term) != (successor, new_term):
        raise AssertionError(
            f"{leader} came back and disturbed {successor} (term {new_term}): now {healed} leads term {healed_term}"
        )
    return f"{leader} cut off in term {term}, {successor} leads term {new_term} and still did after the mend"


def pause_the_leader(containers: Containers) -> str:
    leader, term = containers.wait_for_leader(containers.nodes)
    containers.compose("pause", leader)
    rest = [node for node in containers.nodes if node != leader]
    try:
        successor, new_term = containers.wait_for_leader(rest, newer_than=term)
    finally:
        containers.compose("unpause", leader)
    return f"{leader} paused in term {term}, {successor} leads term {new_term}, {leader} follows it"


def restart_one_after_the_other(containers: Containers) -> str:
    before = containers.wait_until_whole()["term"]
    for node in containers.nodes:
        containers.compose("restart", "-t", "15", node)
        containers.wait_until_whole()
    after = containers.wait_until_whole()["term"]
    return f"every node restarted, terms {before} to {after}"


def kill_all(containers: Containers) -> str:
    before = containers.wait_until_whole()
    containers.compose("kill", "-s", "SIGKILL")
    containers.compose("start", *containers.nodes)
    after = containers.wait_until_whole()
    if after["revision"] < before["revision"] or after["term"] < before["term"]:
        raise AssertionError(f"the log went back from {before['revision']} to {after['revision']}")
    return f"all killed at revision {before['revision']}, back at {after['revision']}"


def grow_to_five(containers: Containers) -> str:
    containers.compose("--profile", "five", "up", "-d", "--no-build")
    containers.nodes = ["n1", "n2", "n3", "n4", "n5"]
    members = containers.wait_until_whole()["members"]
    return f"{len(members)} members, each with a vote"


ON_THREE: tuple[Scenario, ...] = (
    kill_the_leader,
    cut_the_leader_off,
    pause_the_leader,
    restart_one_after_the_other,
    kill_all,
)
"""In this order; then the cluster grows, and the first three run again on five nodes."""
ON_FIVE: tuple[Scenario, ...] = (kill_the_leader, cut_the_leader_off, pause_the_leader)
