"""The six scenarios of the source paper, as far as it tells them, and the readings where it does not.

Told: nodes, connectivity of two of them, rounds before the delete, who deletes, 100 rounds after it. Not told: how a
sparse graph is made connected (here: at least three peers each, and drawn again until it is), the connectivity of the
other four (40 %, as in the first), how long the partition lasts (600 rounds, which makes its 720 in all).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.gossip_rules import Network, Peers

STEP = 10
"""The paper looks whether all records are gone every ten rounds: its single runs say 10, its averages 11 and 13."""
AFTER = 110
"""And stops at the first look after more than 100 further rounds."""
GIVE_UP = 500
AWAY = 60
LEAST_PEERS = 3


@dataclass(frozen=True)
class Scenario:
    name: str
    clusters: tuple[int, ...]
    connectivity: float
    rounds_before: int
    deleters: tuple[int, ...]
    paper_deletion: float
    paper_keepers: float
    paper_total: float | None
    paper_trials: int
    partition: int = 0

    @property
    def nodes(self) -> int:
        return sum(self.clusters)


SCENARIOS = (
    Scenario("single", (15,), 0.40, 20, (0,), 11, 15.5, 121, 50),
    Scenario("early", (20,), 0.40, 3, (0,), 10, 15.0, 120, 1),
    Scenario("bridged", (15, 15), 0.40, 20, (0,), 10, 23.0, None, 1),
    Scenario("concurrent", (20,), 0.40, 30, (0, 5, 10), 10, 10.0, None, 1),
    Scenario("partition", (10, 10), 0.40, 30, (1,), 10, 25.0, 720, 1, partition=600),
    Scenario("sparse", (25,), 0.15, 20, (0,), 13, 20.4, 123, 20),
)


@dataclass
class Outcome:
    deletion: int
    total: int
    keepers: int
    left: int
    """Copies of the deleted record at the end."""
    premature: int
    returned: int
    bytes_a_round: float
    purges: int


def peers_of(scenario: Scenario, chance: random.Random) -> tuple[Peers, tuple[int, int] | None]:
    """Who talks with whom, and the bridge if there is one."""
    graph: list[set[int]] = [set() for _ in range(scenario.nodes)]
    first = 0
    for size in scenario.clusters:
        for node, others in enumerate(_cluster(size, scenario.connectivity, chance)):
            graph[first + node] = {first + other for other in others}
        first += size
    bridge = (0, scenario.clusters[0]) if len(scenario.clusters) > 1 else None
    if bridge is not None:
        graph[bridge[0]].add(bridge[1])
        graph[bridge[1]].add(bridge[0])
    return [sorted(others) for others in graph], bridge


def _cluster(size: int, connectivity: float, chance: random.Random) -> list[set[int]]:
    while True:
        graph: list[set[int]] = [set() for _ in range(size)]
        for node in range(size):
            for other in range(node):
                if chance.random() < connectivity:
                    graph[node].add(other)
                    graph[other].add(node)
        for node in range(size):
            while len(graph[node]) < LEAST_PEERS:
                other = chance.randrange(size)
                if other != node:
                    graph[node].add(other)
                    graph[other].add(node)
        reached, waiting = {0}, [0]
        while waiting:
            fresh = graph[waiting.pop()] - reached
            reached |= fresh
            waiting.extend(fresh)
        if len(reached) == size:
            return graph


def run(scenario: Scenario, network: Network, bridge: tuple[int, int] | None, away: int = 0) -> Outcome:
    """One trial. `away`: so many holders go offline just before the delete and come back after AWAY rounds."""
    network.create(0)
    for _ in range(scenario.rounds_before):
        network.round()
    if scenario.partition and bridge is not None:
        _link(network, bridge, joined=False)
    deleters = [node for node in scenario.deleters if network.record[node]] or [0]
    gone = _go_away(network, deleters, away)
    for node in deleters:
        network.delete(node)
    began = network.now
    _pass(network, scenario.partition)
    if scenario.partition and bridge is not None:
        _link(network, bridge, joined=True)
    healed = network.now
    if gone:
        _pass(network, AWAY)
        for node in gone:
            network.up[node] = True
    while network.holders() and network.now - healed < GIVE_UP:
        for _ in range(STEP):
            network.round()
    deletion = network.now - healed
    for _ in range(AFTER):
        network.round()
    seen, total = network.seen, network.now - began
    return Outcome(
        deletion,
        total,
        network.keepers(),
        network.holders(),
        seen.premature,
        seen.returned,
        seen.sent_bytes / network.now,
        seen.purges,
    )


def _pass(network: Network, rounds: int) -> None:
    left = rounds
    while left:
        if left % STEP == 0 and network.idle():
            network.skip(left)
            return
        network.round()
        left -= 1


def _go_away(network: Network, deleters: list[int], away: int) -> list[int]:
    holding = [node for node, held in enumerate(network.record) if held and node not in deleters]
    gone = network.chance.sample(holding, min(away, len(holding)))
    for node in gone:
        network.up[node] = False
    return gone


def _link(network: Network, bridge: tuple[int, int], *, joined: bool) -> None:
    for node, other in (bridge, bridge[::-1]):
        if joined:
            network.peers[node].append(other)
        else:
            network.peers[node].remove(other)
