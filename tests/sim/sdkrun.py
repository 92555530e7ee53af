"""The SDK and the HTTP layer of the nodes, on simulated wires: what a program of a user would see.

Programs stop and die in the middle of anything. Of those that run, one at most is in the body of a lock or a task, and
what was promised to them holds; every watch tells every event; what was put in once is there once. What they keep
stays, what they let go of is cleaned up (I6, I7, I8), and no copy outlives it (I14). In peace all of them get on with
their work, and leave nothing behind.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from coordinator.client.identity import client_of
from coordinator.machine.events import Event
from coordinator.machine.invariants import check
from tests.checkers import garbage_goes, linearizable
from tests.checkers.exclusive_holds import ENDS, ExclusiveHolds
from tests.checkers.linearizable import Operation
from tests.checkers.lockmodel import Locks
from tests.checkers.newest import Newest
from tests.checkers.no_resurrection import NoResurrection
from tests.checkers.reachable import WatchedMachine
from tests.checkers.refusals import WatchedRefusals
from tests.checkers.token_order import TokenOrder
from tests.checkers.violation import Violation
from tests.sim.clientfaults import KINDS, ClientFaults
from tests.sim.followed import Followed
from tests.sim.frame import PEACE_S, Run
from tests.sim.offices import Offices, Served
from tests.sim.plan import Plan
from tests.sim.programs import PortOffice, borrowed
from tests.sim.sdkgraph import SHARDS
from tests.sim.sdkload import KEYS, SdkLoad
from tests.sim.wires import Wires
from tests.sim.world import Site

CLOSING_S = 10.0
"""Closing takes a few round trips; what a dead connection costs is bounded by the time of one call."""


class SdkMachine(WatchedRefusals, WatchedMachine):
    """Watched for what it refuses, and for what it reclaims."""

    def __init__(self, refused: Newest, stepped: Newest) -> None:
        super().__init__(refused)
        self.stepped = stepped


class SdkRun(Run):
    NAME = "sdk"
    EVERY = 4
    SECONDS = 8.0
    COMPARE_EVERY = 7
    MORE = KINDS
    FAULTS = ClientFaults

    def __init__(self, plan: Plan) -> None:
        entries = Newest(), Newest()
        super().__init__(plan, lambda: Served(machine=SdkMachine(*entries)))
        world = self.world
        self.wires = Wires(world)
        ports = random.Random(world.rng.getrandbits(64))
        self.offices = Offices(world, partial(PortOffice, self.wires, ports))
        self.load = SdkLoad(
            world, self.wires, clients=plan.clients // 2 + 2, rate=plan.rate / 3, drift=plan.timing.drift
        )
        self.faults.expose(self.wires, self.load.users)  # type: ignore[attr-defined]
        self.tokens, self.holds = TokenOrder(), ExclusiveHolds()
        self.copies = NoResurrection()
        self._followed = Followed()
        self._grants: dict[int, Operation] = {}
        """By token, at the moment when the first node applied it."""
        self._ends: list[Operation] = []
        self._decided = 0

    def run(self) -> None:
        gc.freeze()  # what was there before the run is not looked through in the end
        gc.disable()  # it calls what was left in the middle, at moments that depend on what ran before
        try:
            with borrowed(self.plan.seed, lambda: self.world.now):
                super().run()
        finally:
            self._bury()
            gc.enable()
            gc.unfreeze()

    def _bury(self) -> None:
        """Also when it ended in the middle: else the rest would be gone through whenever Python collects it."""
        self.offices.bury()
        for user in self.load.users:
            if user.program is not None:
                user.program.bury()

    def begin(self) -> None:
        self.load.start()

    def rest(self) -> None:
        self.load.running = False

    # --- the log ---------------------------------------------------------------------------------------------------

    def applied(self, site: Site) -> None:
        """Each entry is followed once, on the node that is the first to apply it."""
        machine = site.machine.machine
        events = self._followed.news(machine)
        if events is None:
            return
        for event in events:
            self._follow(event)
        self.copies.look(machine.state, [user.graph for user in self.load.users if user.graph.holds])

    def _follow(self, event: Event) -> None:
        self.tokens.event(event)
        self.load.events.event(event)
        self.load.graph.follow(event)
        if event.key in KEYS:
            self._follow_lock(event)
        elif event.kind == "lease_expired":
            self._not_early("lease", event.number, event)

    def _follow_lock(self, event: Event) -> None:
        now, token = self.world.now, event.fencing_token
        self.holds.event(event)
        if event.kind == "lock_granted" and token not in self._grants:
            owner = client_of(event.owner)
            self._grants[token] = Operation(owner, event.key, "acquire", (), now, now, ("granted", token))
            self.load.granted_s[token] = now
        elif event.kind in ENDS:
            since = now
            if event.kind == "lock_expired":
                self._not_early("lock", token, event)
                since = max(self.load.promised_s["lock", token], self._grants[token].called)
            self._ends.append(Operation("", event.key, "end", (token,), since, now, (event.kind,)))

    def _not_early(self, kind: str, number: int, event: Event) -> None:
        """What the SDK told its user: nobody else can have it until then."""
        until_s, now = self.load.promised_s[kind, number], self.world.now
        self.load.expired.add((kind, number))
        if now < until_s:
            told = f"its client counts on it until {until_s:.4f} s"
            raise Violation("no_early_expiry", f"{event.kind} of {event.key} at {now:.4f} s, and {told} (I4)")

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        load = self.load
        self._wait(lambda: all(user.served for user in load.users), 4 * PEACE_S, self._late)
        self._wait(lambda: not load.unhandled, 3 * PEACE_S, lambda: f"tasks that nobody did: {sorted(load.unhandled)}")
        self._wait(self._all_clean, 3 * PEACE_S, self._dirty)
        shards = load.graph.shards
        self._wait(lambda: set(+shards) == set(SHARDS), PEACE_S, lambda: f"of the shards {+shards} are worked on")
        self._wait(lambda: all(user.seen.is_complete for user in load.users), 3 * PEACE_S, self._behind)
        load.closing = True
        self._wait(lambda: all(user.finished for user in load.users), CLOSING_S + load.longest_s, self._open)
        self._wait(self._nothing_left, CLOSING_S, self._left)
        machines = [served.machine for served in self.equal_machines()]
        garbage_goes.check(machines)
        for machine in machines:
            check(machine.state)
        self._decided += linearizable.check(self._of_locks(), Locks())
        gc.collect()  # a task that failed unseen tells so when it is collected
        self.world.run(0.1)

    def _wait(self, condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
        if not self.world.run_until(condition, seconds):
            raise Violation("progress", f"nothing goes wrong any more, and after {seconds:.0f} s: {what()}")

    def _all_clean(self) -> bool:
        """What nobody keeps is gone, and whoever had a copy of it knows."""
        machines = [served.machine for served in self.machines()]
        if not machines or self.load.graph.uncleaned:
            return False
        if any(machine.state.copies.tombstones or machine.reclaim_counts().open for machine in machines):
            return False
        return not any(machine.garbage() for machine in machines)

    def _dirty(self) -> str:
        machines = [served.machine for served in self.machines()]
        self.load.graph.effects.check()
        garbage_goes.check(machines)
        stones = [len(machine.state.copies.tombstones) for machine in machines]
        counts = [machine.reclaim_counts() for machine in machines]
        return f"not cleaned up: {self.load.graph.uncleaned}, tombstones: {stones}, clean-ups: {counts[:1]}"

    def _late(self) -> str:
        return f"{[user.name for user in self.load.users if not user.served]} have not done everything once"

    def _behind(self) -> str:
        return "; ".join(user.seen.where for user in self.load.users if not user.seen.is_complete)

    def _open(self) -> str:
        return f"{[user.name for user in self.load.users if not user.finished]} cannot close their clients"

    def _nothing_left(self) -> bool:
        return not any(user.left for user in self.load.users)

    def _left(self) -> str:
        return f"left behind by closed clients: {[user.left for user in self.load.users if user.left]}"

    def _of_locks(self) -> list[Operation]:
        """What users were told, and what the log did without telling any: a grant whose answer was lost, the ends."""
        told = {each.result[1] for each in self.load.history if each.verb == "acquire" and each.result[0] == "granted"}
        untold = [grant for token, grant in self._grants.items() if token not in told]
        return self.load.history + untold + self._ends

    def load_counts(self) -> Counter[str]:
        counts: Counter[str] = Counter(self.load.outcomes)
        counts["operations checked"] = self._decided
        counts["grants"] = self.tokens.grants
        counts.update(self.load.graph.happened)
        counts.update(buried=self.copies.buried, purged=self.copies.purged, looked=self.copies.copies_seen)
        counts["bodies"] = self.load.one_body.bodies
        counts["events told"] = sum(user.seen.told for user in self.load.users)
        counts["connections"] = self.wires.made
        counts["bytes travelled"] = self.wires.travelled
        counts.update({f"wires {what}": number for what, number in self.wires.happened.items()})
        return counts
