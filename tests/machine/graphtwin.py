"""The machine beside the graph's model, and a collector that works in between, a little at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coordinator.machine import commands as c
from coordinator.machine import garbage
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.graph import CLAIMED, DEAD, DELAYED, DYING, LIVE, PENDING
from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine
from coordinator.machine.search import Round
from coordinator.machine.state import SLOT_MASK
from tests.machine.graphmodel import GraphModel, ModelResource, cycles
from tests.machine.twin import TICK_MS, packed

STATES = {LIVE: "live", DYING: "dying", PENDING: "pending", DELAYED: "delayed", CLAIMED: "claimed", DEAD: "dead"}
ROUNDS = 2
"""K of I7: the round that was under way when references stopped changing, and the one after it."""


class ReachableReclaimed(AssertionError):
    """I6."""


class GarbageLeft(AssertionError):
    """I7."""


class GraphTwin:
    def __init__(self) -> None:
        self.machine, self.model = Machine(), GraphModel()
        self.hopping = Machine()
        """Told the same, and now and then restored from its own snapshot."""
        self.claims: dict[tuple[int, int], tuple[str, str]] = {}
        """Resource and worker, by clean-up and token."""
        self.members: list[str] = []
        """Of the set under way."""

    def names(self) -> dict[str, int]:
        """Slots by resource id, of all that is registered."""
        table, names = self.machine.state.resources, self.machine.state.names
        used = np.flatnonzero(table.column("state")[: table.used]).tolist()
        return {names.text(table.name[slot]): slot for slot in used}

    def live(self) -> set[str]:
        states = self.machine.state.resources.state
        return {name for name, slot in self.names().items() if states[slot] == LIVE}

    def name_of(self, number: int) -> str:
        state = self.machine.state
        return str(state.names.text(state.resources.name[number & SLOT_MASK]))

    # --- one entry ------------------------------------------------------------------------------------------------

    def advance(self, by_ticks: int) -> None:
        live, model = self.live(), self.model
        model.index += 1
        ended = model.advance(model.now + by_ticks * TICK_MS)
        self._apply([])
        self._reckon(live, set(ended))

    def do(self, command: c.Command) -> Any:
        return self.entry(command)[0]

    def entry(self, *commands: c.Command) -> list[r.Result]:
        """Several commands at once; a set's last part only alone."""
        live, excused = self.live(), set()
        self.model.index += 1
        members = self._members_of(commands[0])
        results = self._apply([encode_command(command) for command in commands])
        for command, result in zip(commands, results, strict=True):
            excused |= getattr(self, "_" + type(command).__name__)(command, result) or set()
            if isinstance(result, r.SetTaken) and result.condemned:
                if wrong := self.model.reachable() & set(members):
                    raise ReachableReclaimed(f"{sorted(wrong)} are reachable and were condemned")
                self.model.go(members)
        self._reckon(live, excused | set(members))
        return results

    def _apply(self, commands: list[bytes]) -> list[r.Result]:
        index, now = self.model.index, self.model.now
        results = self.machine.apply(index, now, commands)
        assert self.hopping.apply(index, now, commands) == results
        return results

    def _members_of(self, command: c.Command) -> list[str]:
        """What the set consists of once this part is in."""
        if not isinstance(command, c.ProposeSet):
            return []
        if command.part == 0:
            self.members = []
        numbers = np.frombuffer(command.members, "<u8").tolist()
        self.members += [self.name_of(number) for number in numbers]
        return self.members if command.last else []

    def hop(self) -> None:
        frozen = b"".join(self.hopping.freeze().chunks())
        self.hopping = Machine()
        self.hopping.restore([frozen])
        check(self.hopping.state)
        assert self.hopping.digest() == self.machine.digest()

    # --- one method a command -------------------------------------------------------------------------------------

    def _usable(self, *names: str) -> str | None:
        """The denial that a new reference between these gets."""
        for name in names:
            if name not in self.model.resources:
                return "unknown_resource"
            if self.model.resources[name].state != "live":
                return "resource_reclaiming"
        return None

    def _RaiseLevel(self, command: c.RaiseLevel, result: r.Result) -> None:  # noqa: N802
        assert result == r.LevelRaised(command.level)

    def _PutResources(self, command: c.PutResources, result: r.Result) -> None:  # noqa: N802
        model = self.model
        known = {name: model.resources[name] for name in command.resource_ids if name in model.resources}
        if refused := next((x for x in known.values() if x.state != "live" or x.provider != command.provider), None):
            return denied(result, "provider_mismatch" if refused.state == "live" else "resource_reclaiming")
        assert isinstance(result, r.ResourcesPut) and result.created == len(set(command.resource_ids) - known.keys())
        for name in command.resource_ids:
            hold = 0 if model.holders(name) else model.now + command.safety_buffer_ms
            fresh = ModelResource(command.provider, command.kind, 0, False, "", hold)
            resource = model.resources.setdefault(name, fresh)
            resource.kind, resource.buffer = command.kind, command.safety_buffer_ms
            resource.pinned, resource.on_lost = command.pinned, command.on_lost
            if command.max_lifetime_ms is not None:
                ends = model.now + command.max_lifetime_ms
                resource.deadline = ends if resource.deadline is None else min(ends, resource.deadline)
        return None

    def _DeleteResource(self, command: c.DeleteResource, result: r.Result) -> set[str] | None:  # noqa: N802
        name = command.resource_id
        code = self._usable(name)
        if code is None and not command.force and self.model.references(name):
            code = "resource_in_use"
        if code is not None:
            return denied(result, code)
        assert isinstance(result, r.ResourceDeleted)
        if self.model.holders(name):
            self.model.begin_buffer(name)
        self.model.go({name})
        return {name}

    def _PutEdges(self, command: c.PutEdges, result: r.Result) -> None:  # noqa: N802
        pairs = list(zip(command.sources, command.targets, strict=True))
        if code := next((code for pair in pairs if (code := self._usable(*pair))), None):
            return denied(result, code)
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self.model.edges]
        assert result == r.EdgesPut(len(new))
        if command.on_lost is not None:
            self.model.edges.update((pair, command.on_lost) for pair in pairs if pair in self.model.edges)
        for source, target in new:
            self.model.edges[source, target] = command.on_lost or self.model.resources[target].on_lost
            self.model.gain(target)
        return None

    def _DeleteEdge(self, command: c.DeleteEdge, result: r.Result) -> None:  # noqa: N802
        pair = command.source_resource_id, command.target_resource_id
        if self.model.edges.pop(pair, None) is None:
            return denied(result, "unknown_edge")
        assert result == r.EdgeDeleted(self.model.references(pair[1]))
        return None

    def _AcquireLease(self, command: c.AcquireLease, result: r.Result) -> None:  # noqa: N802
        name, model = command.resource_id, self.model
        if self._usable(name) == "resource_reclaiming":
            return denied(result, "resource_reclaiming")
        assert isinstance(result, r.LeaseGranted) and result.ttl_ms > 0
        lease = model.lease(name, command.client_id, command.lease_duration_ms)
        assert (result.expires_ms, result.reference_count) == (lease.expiry, model.references(name))
        return None

    def _ReleaseLease(self, command: c.ReleaseLease, result: r.Result) -> None:  # noqa: N802
        if self.model.leases.pop((command.resource_id, command.client_id), None) is None:
            return denied(result, "unknown_lease")
        assert result == r.LeaseReleased(self.model.references(command.resource_id))
        return None

    def _ProposeSet(self, command: c.ProposeSet, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, r.SetTaken) or denied(result, "set_refused") is None

    def _SettleSuspects(self, command: c.SettleSuspects, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, r.SuspectsSettled)

    def _Sweep(self, command: c.Sweep, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, r.Swept)

    def _ClaimReclaims(self, command: c.ClaimReclaims, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, r.ReclaimsClaimed)
        model, provider = self.model, command.provider
        lanes = [kind for owner, kind in model.lanes if owner == provider and kind in (command.kinds or (kind,))]
        assert len(result.items) == min(command.max, sum(model.open_in(provider, kind) for kind in lanes))
        for item in result.items:
            resource = model.resources[item.resource_id]
            assert (resource.state, resource.provider, resource.kind) == ("pending", provider, item.kind)
            assert item.kind in lanes and model.open_in(provider, item.kind)
            assert resource.ready_at == model.in_lane(provider, item.kind, "pending")[0].ready_at, "the oldest first"
            assert item.token > max((token for _, token in self.claims), default=0)
            resource.state, resource.worker, resource.token = "claimed", command.worker_id, item.token
            resource.attempt, resource.due = resource.attempt + 1, model.now + command.claim_ms
            assert item.attempt == resource.attempt
            self.claims[item.reclaim_id, item.token] = item.resource_id, command.worker_id
        assert result.left == sum(model.open_in(provider, kind) for kind in lanes)

    def _claimed(self, number: int, token: int, worker: str) -> str | None:
        """The resource, if this worker's claim is the last anybody had."""
        name, _ = self.claims[number, token]
        resource = self.model.resources.get(name)
        return name if resource is not None and (resource.token, resource.worker) == (token, worker) else None

    def _AckReclaims(self, command: c.AckReclaims, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, r.ReclaimsAnswered)
        (number,), (token,) = np.frombuffer(command.reclaim_ids, "<u8"), np.frombuffer(command.tokens, "<u8")
        name = self._claimed(int(number), int(token), command.worker_id)
        assert (r.RECLAIM_VERDICTS[result.verdicts[0]] == "ok") == (name is not None)
        if name is not None:
            self.model.lanes[(x := self.model.resources[name]).provider, x.kind].failures = 0
            self.model.forget(name)
            self.model.reclaimed += 1

    def _ReturnReclaims(self, command: c.ReturnReclaims, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, r.ReclaimsAnswered)
        (number,), (token,) = np.frombuffer(command.reclaim_ids, "<u8"), np.frombuffer(command.tokens, "<u8")
        name = self._claimed(int(number), int(token), command.worker_id)
        claimed = name is not None and self.model.state_of(name) == "claimed"
        assert (r.RECLAIM_VERDICTS[result.verdicts[0]] == "ok") == claimed
        if name is not None and claimed:
            self.model.ready(resource := self.model.resources[name])
            resource.attempt -= 1

    def _NackReclaim(self, command: c.NackReclaim, result: r.Result) -> None:  # noqa: N802
        name = self._claimed(command.reclaim_id, command.token, command.worker_id)
        if name is None or self.model.resources[name].state != "claimed":
            assert isinstance(result, r.Denied) and result.code in ("not_holder", "unknown_reclaim")
            return
        resource = self.model.resources[name]
        self.model.refuse(resource, command.retry_in_ms)
        assert isinstance(result, r.ReclaimNacked) and result.dead == (resource.state == "dead")

    def _RetryReclaims(self, command: c.RetryReclaims, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, r.DeadLettersMoved)
        dead = [x for x in self.model.resources.values() if (x.provider, x.state) == (command.provider, "dead")]
        assert (result.moved, result.left) == (len(dead), 0)
        for resource in dead:
            self.model.lanes[resource.provider, resource.kind].failures = 0
            self.model.ready(resource)
            resource.attempt = 0

    def _PurgeReclaims(self, command: c.PurgeReclaims, result: r.Result) -> None:  # noqa: N802
        dead = [n for n, x in self.model.resources.items() if (x.provider, x.state) == (command.provider, "dead")]
        assert result == r.DeadLettersMoved(len(dead), 0)
        for name in dead:
            self.model.forget(name)

    # --- comparing ------------------------------------------------------------------------------------------------

    def _reckon(self, before: set[str], excused: set[str]) -> None:
        """`excused`: deleted by order, at the end of their lives, or looked at already."""
        gone = before - self.live() - excused
        if wrong := gone & self.model.reachable():
            raise ReachableReclaimed(f"{sorted(wrong)} are reachable and were reclaimed")
        self.model.settle()
        self.compare()

    def compare(self) -> None:
        state, model = self.machine.state, self.model
        check(state)
        table, names = state.resources, self.names()
        assert {name: STATES[table.state[slot]] for name, slot in names.items()} == {
            name: resource.state for name, resource in model.resources.items()
        }
        for name, slot in names.items():
            resource = model.resources[name]
            assert table.in_count[slot] == model.edges_to(name), name
            assert state.names.active[table.name[slot]] == model.holders(name), name
            if resource.state == "live":
                assert (garbage.resources.kept_by(state, slot) is not None) == model.kept(name), name
        unreferenced = [n for n in model.live() if not model.references(n)]
        assert state.orphans == sum(1 for name in unreferenced if not model.resources[name].pinned)
        assert (state.edges.live, state.reclaimed) == (len(model.edges), model.reclaimed)

    def search(self, visits: int) -> None:
        """A whole round, nothing proposed: it finds all garbage there is, and nothing else."""
        found = Round(self.machine.state, 1000)
        while not found.go_on(visits):
            pass
        garbage, settled = set(map(self.name_of, found.proposed())), set(map(self.name_of, found.settled()))
        if left := self.model.garbage() - garbage:
            raise GarbageLeft(f"{sorted(left)} are garbage, and no suspect leads to them")
        assert garbage == self.model.garbage(), "the search takes what is alive for garbage"
        assert settled == set(map(self.name_of, found.suspects)) - garbage
        for part in cycles(self.model.graph()):
            assert part <= garbage or not part & garbage, "the search tore a cycle apart"

    def expect_no_garbage(self) -> None:
        if left := self.model.garbage():
            raise GarbageLeft(f"{sorted(left)} are garbage and were not reclaimed")


class Collector:
    """The rounds of a leader, one slice or one command at a time."""

    def __init__(self, twin: GraphTwin, most: int = 1000) -> None:
        self._twin, self._most = twin, most
        self.round: Round | None = None
        self._commands: list[Callable[[], c.Command]] = []
        self._number = 0
        self.rounds = 0
        self.taken = self.refused = self.settled = 0

    def step(self, visits: int, part: int) -> None:
        if self.round is None:
            self.round = Round(self._twin.machine.state, self._most)
            return
        if self._commands:
            self._send()
        elif self.round.go_on(visits):
            self._conclude(self.round, part)
        else:
            return
        if not self._commands:
            self.rounds += 1
            self.round = None

    def finish(self, visits: int, part: int) -> None:
        """The round that is under way, or a whole one."""
        began = self.rounds
        while self.rounds == began:
            self.step(visits, part)

    def _send(self) -> None:
        result = self._twin.do(self._commands.pop(0)())
        if isinstance(result, r.Denied):
            self.refused += 1
            self._commands.clear()
        elif isinstance(result, r.SetTaken):
            self.taken += result.condemned
        else:
            self.settled += result.settled

    def _conclude(self, over: Round, part: int) -> None:
        settled, members = list(over.settled()), list(over.proposed())
        if settled:
            self._commands.append(lambda: c.SettleSuspects(packed(*settled), over.as_of))
        parts = [members[at : at + part] for at in range(0, len(members), part)]
        for number, chunk in enumerate(parts):
            self._commands.append(lambda n=number, chunk=chunk: self._propose(n, chunk, n == len(parts) - 1))

    def _propose(self, part: int, members: list[int], last: bool) -> c.ProposeSet:
        if part == 0:
            self._number = garbage.next_set(self._twin.machine.state)
        return c.ProposeSet(self._number, part, packed(*members), last)


def denied(result: r.Result, code: str) -> None:
    assert isinstance(result, r.Denied) and result.code == code, result
