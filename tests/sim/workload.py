"""Simulated clients: each does one operation after the other on random nodes and records what it was told.

Every value written is unique, so that each command can be found in the log again. Registers take put and
compare-and-set, sequences take append; both are read linearizably on any node.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from cluster.lanes import FRONT, Lane
from cluster.ports import Committed, Denied, Outcome
from tests.checkers.durable import Durable
from tests.checkers.linearizable import Operation
from tests.checkers.violation import Violation
from tests.reference.register import command
from tests.sim.world import Site, World

TIMEOUT_S = 2.0
_GRACE_S = 1.0
"""How much later than its deadline a call may end: deadlines are looked at once a heartbeat."""
REGISTERS = ("r0", "r1", "r2")
SEQUENCES = ("s0", "s1")
LANES = {
    "r0": (FRONT, 1), "r1": (Lane("a"), 5), "r2": (Lane("b"), 300), "s0": (Lane("a", background=True), 100),
    "s1": (Lane("b"), 1),
}  # fmt: skip
"""In which lane commands about a key travel, and what they are said to cost."""


class _Call:
    """One operation on its way: ends once, by an outcome or by the death of its node."""

    def __init__(self, site: Site, operation: Operation, body: bytes | None) -> None:
        self.site = site
        self.life = site.life
        self.stops = site.stops
        self.operation = operation
        self.body = body
        self.ended = False
        self.answered = False


class Client:
    def __init__(self, workload: Workload, name: str, rng: random.Random) -> None:
        self._workload = workload
        self._world = workload.world
        self._name = name
        self._rng = rng
        self._written = 0
        self._known: dict[str, Any] = {}
        self.call: _Call | None = None

    def begin(self) -> None:
        if self._workload.running:
            self._world.at(self._rng.expovariate(self._workload.rate), self._act)

    def _act(self) -> None:
        sites = [site for _, site in sorted(self._world.sites.items())]
        site = self._rng.choice(sites)
        node = site.node
        if node is None:
            self._workload.outcomes["refused"] += 1
            self.begin()
            return
        operation = self._operation()
        body = None if operation.verb == "read" else command(operation.verb, operation.key, *operation.arguments)
        call = self.call = _Call(site, operation, body)
        self._workload.history.append(operation)
        patience = TIMEOUT_S * self._world.pace
        self._world.at(patience / site.clock.rate + _GRACE_S * self._world.pace, lambda: self._overdue(call))
        if body is None:
            self._deliver(call, lambda: node.read_index(patience, lambda index: self._on_read(call, index)))
        else:
            lane, cost = LANES[operation.key]
            self._deliver(
                call,
                lambda: node.propose(body, patience, lambda outcome: self._on_written(call, outcome), lane, cost),
            )

    @staticmethod
    def _deliver(call: _Call, request: Callable[[], None]) -> None:
        """A node that is stopped finds the request in its socket when it goes on."""
        site = call.site
        if site.stopped:
            call.stops = -1
            site.postponed.append(lambda: site.run(request) if site.life == call.life else None)
        else:
            site.run(request)

    def _operation(self) -> Operation:
        rng = self._rng
        key = rng.choice(REGISTERS + SEQUENCES)
        self._written += 1
        padding = "." * int(rng.paretovariate(1.0)) if rng.random() < 0.2 else ""
        value: Any = f"{self._name}-{self._written}{padding[:6000]}"
        chance = rng.random()
        if chance < 0.4:
            verb, arguments = "read", ()
        elif key in SEQUENCES and chance < 0.95:
            verb, arguments = "append", (value,)
        elif key in SEQUENCES:
            verb, arguments = "put", ((value,),)
        elif chance < 0.7:
            verb, arguments = "put", (value,)
        else:
            verb, arguments = "cas", (self._known.get(key), value)
        return Operation(self._name, key, verb, arguments, self._world.now)

    # --- outcomes --------------------------------------------------------------------------------------------

    def _on_read(self, call: _Call, index: int | Denied) -> None:
        if not self._first_answer(call):
            return
        if isinstance(index, Denied):
            self._workload.outcomes["read denied"] += 1
            self._workload.history.remove(call.operation)
        else:
            self._return(call, _plain(call.site.machine.values.get(call.operation.key)), "read")
        self._end(call)

    def _on_written(self, call: _Call, outcome: Outcome) -> None:
        if not self._first_answer(call) or call.body is None:
            return
        durable = self._workload.durable
        if isinstance(outcome, Committed):
            durable.acknowledge(call.body, outcome.index)
            # How long a sequence became is left out: it would make open appends count that nobody saw.
            result = _plain(outcome.result[:1] if call.operation.verb == "append" else outcome.result)
            self._return(call, result, f"{call.operation.verb} {outcome.result[0]}")
        elif isinstance(outcome, Denied):
            durable.deny(call.body)
            self._workload.history.remove(call.operation)
            self._workload.outcomes[f"denied: {outcome.code}"] += 1
        else:
            self._workload.outcomes[f"unknown: {outcome.code}"] += 1
        self._end(call)

    def _first_answer(self, call: _Call) -> bool:
        """False for what a dead node says, and for an answer to a client that has given up."""
        if call.site.life != call.life:
            return False
        if call.answered:
            raise Violation("one_answer", f"{call.operation} was answered twice")
        call.answered = True
        return not call.ended

    def _return(self, call: _Call, result: Any, kind: str) -> None:
        operation = call.operation
        operation.returned, operation.result = self._world.now, result
        self._known[operation.key] = result if operation.verb == "read" else result[-1]
        self._workload.outcomes[kind] += 1

    def _overdue(self, call: _Call) -> None:
        if call.ended:
            return
        if call.site.life == call.life and call.site.stops == call.stops:
            raise Violation("one_answer", f"{call.operation} on {call.site.member.id} was never answered (H11)")
        self.give_up(call)

    def give_up(self, call: _Call) -> None:
        """The node is gone or stands still: what became of the operation is not known."""
        if not call.ended:
            self._workload.outcomes["unknown: no answer"] += 1
            self._end(call)

    def _end(self, call: _Call) -> None:
        call.ended = True
        self.call = None
        self.begin()


class Workload:
    def __init__(self, world: World, durable: Durable, *, clients: int, rate: float) -> None:
        """`rate`: operations a second that each client begins, at most."""
        self.world = world
        self.durable = durable
        self.rate = rate
        self.running = False
        self.history: list[Operation] = []
        self.outcomes: Counter[str] = Counter()
        self._clients = [
            Client(self, f"c{number}", random.Random(world.rng.getrandbits(64))) for number in range(clients)
        ]
        world.down_watchers.append(self._on_down)

    def start(self) -> None:
        self.running = True
        for client in self._clients:
            client.begin()

    def stop(self) -> None:
        """Nothing new begins; what is on its way ends."""
        self.running = False

    @property
    def idle(self) -> bool:
        return all(client.call is None for client in self._clients)

    def _on_down(self, site: Site) -> None:
        for client in self._clients:
            call = client.call
            if call is not None and call.site is site:
                client.give_up(call)


def write_then_read(world: World, name: str, value: str, told: Callable[[str], None]) -> None:
    """One write and one read on the node `name`, again until they succeed; `told` when both did."""
    site, patience = world.sites[name], TIMEOUT_S * world.pace
    attempts: list[str] = []

    def write() -> None:
        attempts.append(f"{value}-{len(attempts)}")
        body = command("put", f"last-{name}", attempts[-1])
        site.run(lambda: world.node(name).propose(body, patience, written))

    def written(outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            read()
        else:
            world.at(0.1, write)

    def read() -> None:
        site.run(lambda: world.node(name).read_index(patience, answered))

    def answered(index: int | Denied) -> None:
        if isinstance(index, Denied):
            world.at(0.1, read)
        elif site.machine.values.get(f"last-{name}") != attempts[-1]:
            raise Violation("linearizable", f"{name} does not read its own last write")
        else:
            told(name)

    write()


def _plain(value: Any) -> Any:
    """Lists as tuples, to be compared and hashed."""
    return tuple(_plain(item) for item in value) if isinstance(value, list | tuple) else value
