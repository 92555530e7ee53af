"""Simulated providers, clients and workers of the reference graph, who ask the service of any node."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cluster.ports import Committed, Outcome
from coordinator.claims import claim
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.collection import packed
from coordinator.service import Service
from tests.checkers.one_effect import OneEffect
from tests.sim.offices import Offices
from tests.sim.world import Site, World

TIMEOUT_S = 2.0
REFUSED_S = 0.2
"""Until a client without a node at the other end knows it."""
WAITS_MS = (0, 0, 300, 1_500)
"""How long a worker waits for clean-ups where there are none."""
NAMES = tuple(f"r{number}" for number in range(14))
VERBS = (
    ("put",) * 3 + ("edge",) * 4 + ("family",) * 6 + ("cut",) * 4 + ("lease",) * 3 + ("release",) * 4 + ("claim",) * 5
    + ("delete",)
)  # fmt: skip


@dataclass
class Known:
    """What somebody was told that there is, and may be gone by now."""

    edges: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=12))
    leases: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=6))

    def learn(self, command: c.Command) -> None:
        if isinstance(command, c.PutEdges):
            self.edges.extend(zip(command.sources, command.targets, strict=True))
        elif isinstance(command, c.AcquireLease):
            self.leases.append((command.resource_id, command.client_id))


def drawn(rng: random.Random, verb: str, worker: str, known: Known) -> c.Command:
    start = rng.randrange(len(NAMES))
    near = tuple(NAMES[(start + step) % len(NAMES)] for step in (0, 1, 2, 3)) if rng.random() < 0.9 else NAMES
    name = rng.choice(near)
    match verb:
        case "put":
            return c.PutResources(
                tuple(rng.sample(NAMES, rng.choice((1, 3, 6)))),
                "disk",
                rng.choice(("file", "row")),
                rng.choice((None,) * 15 + (1_500,)),
                rng.choice((0, 800, 800)),
                rng.random() < 0.02,
                rng.choice(("cascade",) * 20 + ("orphan", "block")),
            )
        case "edge":
            return c.PutEdges((name,), (rng.choice(near),), rng.choice((None,) * 20 + ("orphan", "block")))
        case "cut":
            return c.DeleteEdge(*rng.choice(known.edges or [(name, name)]))
        case "lease":
            return c.AcquireLease(name, rng.choice("ab"), rng.choice((300, 300, 1_000, 1_000, 1_500, 1_500, 600_000)))
        case "release":
            return c.ReleaseLease(*(known.leases.popleft() if known.leases else (name, "a")))
        case "claim":
            return c.ClaimReclaims("disk", worker, rng.choice((2, 20)), rng.choice((100, 1000)))
        case _:
            return c.DeleteResource(name, rng.random() < 0.5)


def drawn_family(rng: random.Random) -> list[c.Command]:
    """A ring that a lease keeps for a while, and with it perhaps what hangs on the ring."""
    start = rng.randrange(len(NAMES))
    names = tuple(NAMES[(start + step) % len(NAMES)] for step in range(rng.choice((2, 3, 5))))
    ring = names[: rng.choice((2, 3))]
    return [
        c.PutResources(names, "disk", rng.choice(("file", "row")), None, rng.choice((0, 300)) + 500),
        c.PutEdges((*ring, *names[:-1]), (*ring[1:], ring[0], *names[1:])),
        c.AcquireLease(rng.choice(ring), rng.choice("ab"), rng.choice((300, 1_000, 1_500))),
    ]


class GraphClient:
    """One command after the other, on random nodes; what it claims it acknowledges, mostly."""

    def __init__(self, load: GraphLoad, name: str) -> None:
        self._load, self._name = load, name
        self._rng = random.Random(load.world.rng.getrandbits(64))
        self._plans: list[c.Command] = []

    def begin(self) -> None:
        if self._load.running or self._load.draining:
            self._load.world.at(self._rng.expovariate(self._load.rate), self._act)

    def _act(self) -> None:
        if self._load.draining:
            self._plans = [c.ClaimReclaims("disk", self._name, 20, 1_000)]
        elif not self._plans:
            verb = self._rng.choice(VERBS)
            family = verb == "family"
            self._plans = drawn_family(self._rng) if family else [drawn(self._rng, verb, self._name, self._load.known)]
        command = self._plans.pop(0)
        self._load.send(self._rng, command, self._told)

    def _told(self, result: Any) -> None:
        if not isinstance(result, r.ReclaimsClaimed) or not result.items:
            self.begin()
            return
        for item in result.items:
            self._load.effects.handed_out(item.reclaim_id, item.token)
        if self._load.draining or self._rng.random() < 0.9:
            # Some are slow, and come when their claim has run out and another has the item.
            self._load.world.at(self._rng.choice((0.0, 0.0, 0.0, 0.6)), lambda: self._acknowledge(result.items))
        else:
            self.begin()

    def _acknowledge(self, items: tuple[r.Reclaim, ...]) -> None:
        ids, tokens = zip(*((item.reclaim_id, item.token) for item in items), strict=True)
        ack = c.AckReclaims(self._name, packed(ids), packed(tokens))
        self._load.send(self._rng, ack, lambda answer: self._acknowledged(ids, tokens, answer))

    def _acknowledged(self, ids: tuple[int, ...], tokens: tuple[int, ...], answer: Any) -> None:
        if isinstance(answer, r.ReclaimsAnswered):
            for number, token, verdict in zip(ids, tokens, answer.verdicts, strict=True):
                self._load.acknowledge(number, token, r.RECLAIM_VERDICTS[verdict])
        self.begin()


async def _put(command: c.Command, service: Service) -> Outcome:
    return await service.propose("default", command, None, TIMEOUT_S)


async def _claim(command: c.ClaimReclaims, wait_ms: int, request_id: bytes, service: Service) -> Outcome:
    return await claim(service, "default", command, wait_ms, request_id, TIMEOUT_S)


class GraphLoad:
    def __init__(self, world: World, *, clients: int, rate: float) -> None:
        self.world, self.rate = world, rate
        self.offices = Offices(world)
        self.running = self.draining = False
        """What comes, or only what is left to be cleaned up."""
        self.outcomes: Counter[str] = Counter()
        self.known = Known()
        self.effects = OneEffect()
        self._clients = [GraphClient(self, f"w{number}") for number in range(clients)]

    def start(self) -> None:
        self.running = True
        for client in self._clients:
            client.begin()

    def stop(self) -> None:
        self.running = False

    def drain(self) -> None:
        self.draining = True
        for client in self._clients:
            client.begin()

    def send(self, rng: random.Random, command: c.Command, told: Callable[[Any], None]) -> None:
        """To some node. `told` gets the result, or None when there is none, once.

        A node that dies or stands still tells nothing; where there is none, or one that knows it is no member, that is
        known as soon as it is asked.
        """
        site = rng.choice(self._asked())
        question: Callable[[Service], Awaitable[Outcome]] = partial(_put, command)
        wait_ms = 0
        if isinstance(command, c.ClaimReclaims):
            wait_ms, request_id = rng.choice(WAITS_MS), rng.randbytes(8)
            question = partial(_claim, command, wait_ms, request_id)
        self.offices.start(self._ask(site, command, question, 2 * TIMEOUT_S + wait_ms / 1000, told))

    async def _ask(
        self,
        site: Site,
        command: c.Command,
        question: Callable[[Service], Awaitable[Outcome]],
        patience_s: float,
        told: Callable[[Any], None],
    ) -> None:
        node = site.node
        if node is None or all(member.id != site.member.id for member in node.membership.members):
            await self.offices.pass_time(REFUSED_S)
            told(None)
            return
        outcome = await self.offices.ask(site, question, patience_s)
        if outcome is not None:
            self._count(command, outcome)
        told(outcome.result if isinstance(outcome, Committed) else None)

    def _asked(self) -> list[Site]:
        """Any of them while things go wrong; in peace clients know who is a member, by the leader's word."""
        leader = None if self.running else self.world.leader()
        names = None if leader is None else {member.id for member in leader.membership.members}
        return [site for name, site in sorted(self.world.sites.items()) if names is None or name in names]

    def _count(self, command: c.Command, outcome: Outcome) -> None:
        if not isinstance(outcome, Committed):
            self.outcomes[f"{type(outcome).__name__.lower()}: {outcome.code}"] += 1
        elif isinstance(outcome.result, r.Denied):
            self.outcomes[f"refused {outcome.result.code}"] += 1
        else:
            self.known.learn(command)
            self.outcomes[type(command).__name__] += 1

    def acknowledge(self, number: int, token: int, verdict: str) -> None:
        self.outcomes[f"ack {verdict}"] += 1
        self.effects.acknowledged(number, token, verdict)
