"""Locks, leases and sessions through the product's service: waiting, retries, hang-ups, pauses, sweeps by the leader.

The log is followed entry by entry (I2, I3, I4, I5, I12, I13, I17), clients by what they were told (I1, I10, I11); in
peace all that nobody renews goes.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import msgpack

from cluster.node import ClusterNode
from cluster.proposer import PAYLOAD_KIND as BATCH_KIND
from coordinator.machine.codec import Request, decode_command
from coordinator.machine.events import Event
from coordinator.machine.invariants import check
from tests.checkers import linearizable
from tests.checkers.exclusive_holds import ENDS, ExclusiveHolds
from tests.checkers.expired_goes import AvailableTime, ExpiredGoes, Links, time_allowed_s
from tests.checkers.free_lock_granted import FreeLockGranted
from tests.checkers.leasemodel import Leases
from tests.checkers.linearizable import FOREVER, UNKNOWN, Operation
from tests.checkers.lockmodel import Locks
from tests.checkers.newest import Newest
from tests.checkers.token_order import TokenOrder
from tests.checkers.violation import Violation
from tests.sim.followed import Followed
from tests.sim.frame import PEACE_S, Run
from tests.sim.lockload import KEYS, LONGEST_MS, SESSION_MS, LockLoad
from tests.sim.offices import Served
from tests.sim.plan import Plan
from tests.sim.world import Site


class LockRun(Run):
    NAME = "locks"
    SECONDS = 8.0
    COMPARE_EVERY = 7

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, partial(Served, Newest()))
        drift = plan.timing.drift
        self.load = LockLoad(self.world, clients=plan.clients + 2, rate=2 * plan.rate, drift=drift)
        self.tokens = TokenOrder()
        self.holds = ExclusiveHolds()
        self.available = AvailableTime()
        self.standing = ExpiredGoes(drift)
        self.waiting = FreeLockGranted(self.holds, self.load.order)
        self._followed = Followed()
        self._asked = 0
        self._ends: list[Operation] = []
        self._grants: dict[int, Operation] = {}
        """By token, at the moment when the first node applied it."""
        self._decided = 0

    def begin(self) -> None:
        self.load.start()

    def rest(self) -> None:
        self.load.running = False

    # --- the log ---------------------------------------------------------------------------------------------------

    def _look(self, nodes: list[ClusterNode]) -> None:
        super()._look(nodes)
        stopped = [name for name, site in self.world.sites.items() if site.stopped]
        network, weather = self.world.network, self.world.network.weather
        links = Links(weather.drop, gaps=weather.drop + weather.reorder > 0, cut=network.cut)
        self.available.sample(self.world.now, nodes, stopped, links)
        self.standing.check_now(self.available.seconds)

    def _on_apply(self, site: Site, index: int, term: int, payload: bytes | None) -> None:
        super()._on_apply(site, index, term, payload)
        if index <= self._asked or payload is None or payload[:1] != BATCH_KIND:
            return
        self._asked = index
        for raw in msgpack.unpackb(payload[1:])[1]:
            request = decode_command(raw)
            if isinstance(request, Request):
                self.standing.command(request.command, request.request_id, self.available.seconds)

    def applied(self, site: Site) -> None:
        """Each entry is followed once, on the node that is the first to apply it."""
        machine = site.machine.machine
        events = self._followed.news(machine)
        if events is None:
            return
        for event in events:
            self._follow(event, machine.now_ms)
        self.waiting.check(machine.now_ms, left=machine.due(machine.now_ms))

    def _follow(self, event: Event, now_ms: int) -> None:
        now = self.world.now
        self.tokens.event(event)
        self.holds.event(event)
        self.standing.event(event, self.available.seconds)
        self.load.order.event(event, now_ms)
        self.load.expiry.event(event, now)
        if event.kind == "lock_granted":
            token = event.fencing_token
            self._grants.setdefault(
                token, Operation(event.owner, event.key, "acquire", (), now, now, ("granted", token))
            )
        elif event.kind in ENDS:
            self._ends.append(self._end(event, event.key, event.fencing_token))
        elif event.kind == "lease_expired":
            self._ends.append(self._end(event, f"{event.key}/{event.owner}", event.number))

    def _end(self, event: Event, key: str, number: int) -> Operation:
        """What is past its time is over, though the sweep comes to it later: at some moment after what was promised."""
        now = self.world.now
        since = self.load.expiry.promised_s(event) if event.kind.endswith("_expired") else now
        return Operation("", key, "end", (number,), since, now, (event.kind,))

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        if not self.world.run_until(lambda: self.load.idle, 3 * PEACE_S):
            raise Violation("progress", "clients still wait for an answer, and nothing goes wrong any more")
        longest_s = max(LONGEST_MS, SESSION_MS) / 1000
        self.world.run(time_allowed_s(longest_s, self.plan.timing.drift))
        for served in self.equal_machines():
            check(served.machine.state)
        self.standing.check()
        self._decided += linearizable.check(self._of_locks(), Locks())
        self._decided += linearizable.check(self._of_leases(), Leases())

    def _of_locks(self) -> list[Operation]:
        """What clients were told, and what the log did without telling any: a grant for one who hung up, and its end.

        Who was never answered is not asked: whether that one got the lock, the log says.
        """
        own = [each for each in self.load.history if each.key in KEYS]
        told = [each for each in own if each.verb != "acquire" or each.result is not UNKNOWN]
        tokens = {each.result[1] for each in told if each.verb == "acquire" and each.result[0] == "granted"}
        untold = [grant for token, grant in self._grants.items() if token not in tokens]
        released = {each.arguments[0] for each in told if each.verb == "release" and each.result != ("not_holder",)}
        ends = [
            each
            for each in self._ends
            if each.key in KEYS and (each.result != ("lock_released",) or each.arguments[0] not in released)
        ]
        return told + untold + ends

    def _of_leases(self) -> list[Operation]:
        own = [operation for operation in self.load.history if operation.key not in KEYS]
        return own + [each for each in self._ends if each.key not in KEYS]

    def load_counts(self) -> Counter[str]:
        counts: Counter[str] = Counter(self.load.outcomes)
        counts["operations checked"] = self._decided
        counts["grants"] = self.tokens.grants
        counts["hand-overs"] = self.load.order.handed_over
        counts["expiries"] = self.load.expiry.expiries
        counts["revisions told"] = self.load.revisions.checks
        counts["waiters looked at"] = self.waiting.waiters
        counts["locks left free for an entry"] = self.waiting.left_free
        counts["things that ended"] = self.standing.ended
        counts.update(self.available.counts())
        counts["open operations"] = sum(operation.returned == FOREVER for operation in self.load.history)
        return counts
