"""The one door to the replicated state: log entries in, one result a command out.

The same entries in the same order give the same results, the same events and the same frozen bytes on every node. An
entry's revision is its index. Nothing here reads a clock: time is what the entry says, and never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from coordinator.machine import commands as c
from coordinator.machine import (
    garbage,
    graphcounts,
    graphreads,
    reads,
    resources,
    snapshot,
    surroundings,
    sweep,
    tombstones,
)
from coordinator.machine.access import AccessToken
from coordinator.machine.audit import Audit
from coordinator.machine.budget import Budget
from coordinator.machine.codec import Request, decode_command
from coordinator.machine.events import Compacted, Event, EventRing
from coordinator.machine.levels import LEVEL, LITTLE_GARBAGE, OLDEST, REFUSALS, SHARES, TooNew
from coordinator.machine.limits import MAX_CUTS_PER_ENTRY, MAX_HOLDERS_PER_KEY, MAX_NOW_MS, MAX_WAITERS_PER_KEY
from coordinator.machine.namespaces import Namespace
from coordinator.machine.requests import ASK_AGAIN, fingerprint_of, key_of
from coordinator.machine.results import Denied, LockBusy, Result
from coordinator.machine.rules import RULES, put_namespace
from coordinator.machine.snapshot import FormatError, FrozenMachine
from coordinator.machine.state import State
from coordinator.machine.taskreads import Dispatch
from coordinator.machine.tombstonereads import CopyReads
from coordinator.machine.trail import RECORDED, Action, is_forced

__all__ = ["FormatError", "FrozenMachine", "Machine", "TooNew"]


class Machine:
    """Not thread-safe: the node's one thread applies and reads. A frozen state may be read on any thread."""

    def __init__(self, known_level: int = LEVEL) -> None:
        self.state = State(known_level)
        self.restored_level = OLDEST
        """Of the snapshot that this node began with or was sent since; the entries after it may have raised it."""
        self._ring = EventRing()
        self._place = 0
        self.repeats: list[int] = []
        """The places, in the entry applied last, of requests that stood in it before. No part of the state."""

    # --- the log --------------------------------------------------------------------------------------------------

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> list[Result]:
        state = self.state
        state.revision = index
        state.now_ms = max(state.now_ms, min(now_ms, MAX_NOW_MS))
        state.shared_out = 0
        budget = Budget()
        cuts = Budget(MAX_CUTS_PER_ENTRY, sets=False) if state.level >= LITTLE_GARBAGE else budget
        sweep.sweep(state, budget, cuts)
        self.repeats.clear()
        results = []
        for self._place, raw in enumerate(commands):
            results.append(self._apply_one(raw))
        garbage.drain(state, cuts)
        tombstones.purge(state, budget)
        self._ring.add(index, tuple(state.events))
        state.events.clear()
        return results

    def _apply_one(self, raw: bytes) -> Result:
        request = decode_command(raw)
        if isinstance(request, Denied):
            return request
        state = self.state
        namespace = state.namespaces.by_name.get(request.namespace)
        if namespace is None:
            return self._without_namespace(request)
        if request.request_id is None:
            return self._obey(request, namespace)
        key, fingerprint = key_of(namespace.number, request.request_id), fingerprint_of(raw)
        asked = state.requests.last_asked(key)
        known = state.requests.recall(key, fingerprint, state.now_ms, state.revision)
        if known is None:
            known = state.refusals.recall(key, fingerprint, state.now_ms, state.revision)
        if known is not None:
            if asked == state.revision:
                self.repeats.append(self._place)
            return known
        state.request_id = request.request_id
        result = self._obey(request, namespace)
        state.request_id = None
        if isinstance(result, Denied | LockBusy):
            if state.level >= REFUSALS and not (isinstance(result, Denied) and result.code in ASK_AGAIN):
                state.refusals.remember(key, fingerprint, result, state.now_ms, state.revision, shares=True)
        elif namespace.name in state.namespaces.by_name:
            shares = state.level >= SHARES
            state.requests.remember(key, fingerprint, result, state.now_ms, state.revision, shares=shares)
        return result

    def _obey(self, request: Request, namespace: Namespace) -> Result:
        result = RULES[type(request.command)](self.state, namespace, request.command)
        return self._recorded(request, result) if type(request.command) in RECORDED else result

    def _recorded(self, request: Request, result: Result) -> Result:
        """What was refused changed nothing, the trail included."""
        state, command = self.state, request.command
        if not isinstance(result, Denied) and is_forced(command, result):
            action, subject, outcome = RECORDED[type(command)](command)
            state.access.trail.add(
                state.revision, state.now_ms, request.actor, action, request.namespace, subject, outcome
            )
        return result

    def _without_namespace(self, request: Request) -> Result:
        if isinstance(request.command, c.PutNamespace):
            return self._recorded(request, put_namespace(self.state, request.namespace, request.command))
        message = f"there is no namespace {request.namespace}; an administrator creates one"
        return Denied("unknown_namespace", message, {"field": "namespace"})

    def freeze(self) -> FrozenMachine:
        return FrozenMachine(self.state)

    def restore(self, chunks: Iterable[bytes]) -> None:
        """All or nothing: a state that cannot be read leaves this one as it was."""
        self.state = snapshot.read(chunks, self.state.known_level)
        self.restored_level = self.state.level
        self._ring.clear(self.state.revision)

    def digest(self) -> bytes:
        """Equal on two nodes that applied the same entries, however each came to its state. Costs a pass over it."""
        return snapshot.digest(self.state)

    # --- reads ----------------------------------------------------------------------------------------------------

    @property
    def level(self) -> int:
        """Whose rules are in force."""
        return self.state.level

    @property
    def known_level(self) -> int:
        return self.state.known_level

    @property
    def revision(self) -> int:
        return self.state.revision

    @property
    def now_ms(self) -> int:
        return self.state.now_ms

    def events_since(self, revision: int, at_least: int | None = None) -> list[Event] | Compacted:
        """Events of later revisions, in order, or where to start again. With `at_least`, not many more than that."""
        return self._ring.since(revision, at_least)

    def outcome(self, namespace: str, request_id: bytes) -> Result | None:
        """What a request was answered; of a waiting acquire that ended, how it ended. None when not remembered."""
        space = self.state.namespaces.by_name.get(namespace)
        if space is None:
            return None
        found = self.state.requests.remembered.get(key_of(space.number, request_id))
        return None if found is None or found.expires_ms <= self.state.now_ms else found.result

    def last_asked(self, namespace: str, request_id: bytes) -> int:
        """The revision at which a remembered request was asked for the last time, or 0."""
        number = self._number(namespace)
        return 0 if number < 0 else self.state.requests.last_asked(key_of(number, request_id))

    def is_waiting(self, waiter_id: int) -> bool:
        return waiter_id in self.state.waiters

    def _number(self, namespace: str) -> int:
        space = self.state.namespaces.by_name.get(namespace)
        return -1 if space is None else space.number

    def _at(self, now_ms: int | None) -> int:
        return self.state.now_ms if now_ms is None else max(now_ms, self.state.now_ms)

    def leases(
        self, namespace: str, lease_ids: Sequence[int], now_ms: int | None = None
    ) -> list[reads.LeaseView | None]:
        return reads.leases(self.state, self._number(namespace), lease_ids, self._at(now_ms))

    def lease_keys(self, namespace: str, lease_ids: Sequence[int]) -> list[str | None]:
        """What each lease is on; None for one that is not known."""
        return reads.lease_keys(self.state, self._number(namespace), lease_ids)

    def lease_page(
        self, namespace: str, prefix: str, start: int, limit: int, now_ms: int | None = None
    ) -> tuple[list[reads.LeaseView], int | None]:
        """A page of the ACTIVE leases on resources, and where the next one starts; None at the end."""
        return reads.lease_page(self.state, self._number(namespace), prefix, start, limit, self._at(now_ms))

    def reference_count(self, namespace: str, resource_id: str) -> int:
        number = self._number(namespace)
        return reads.reference_count(self.state, number, resource_id) if number >= 0 else 0

    def session(self, namespace: str, session_id: int, now_ms: int | None = None) -> reads.SessionView | None:
        return reads.session(self.state, self._number(namespace), session_id, self._at(now_ms))

    def leases_on(
        self, namespace: str, resource_id: str, limit: int, now_ms: int | None = None
    ) -> list[reads.LeaseView]:
        return reads.leases_on(self.state, self._number(namespace), resource_id, limit, self._at(now_ms))

    def session_page(
        self, namespace: str, prefix: str, start: int, limit: int, now_ms: int | None = None
    ) -> tuple[list[reads.SessionView], int | None]:
        """A page of the sessions of clients that begin so, and where the next one starts; None at the end."""
        return reads.session_page(self.state, self._number(namespace), prefix, start, limit, self._at(now_ms))

    def lock(
        self, namespace: str, lock_key: str, now_ms: int | None = None, waiters: int = MAX_WAITERS_PER_KEY,
        holders: int = MAX_HOLDERS_PER_KEY,
    ) -> reads.LockView | None:  # fmt: skip
        """With the first so many of its waiters and of its holders."""
        number = self._number(namespace)
        return reads.lock(self.state, number, lock_key, self._at(now_ms), waiters, holders) if number >= 0 else None

    def locks(
        self, namespace: str, prefix: str, limit: int, after: str = "", now_ms: int | None = None
    ) -> list[reads.LockView]:
        return reads.locks(self.state, self._number(namespace), prefix, self._at(now_ms), limit, after)

    def fencing_check(
        self, namespace: str, lock_key: str, fencing_token: int, now_ms: int | None = None
    ) -> reads.FencingView:
        number = self._number(namespace)
        if number < 0:
            return reads.FencingView(current=False, newest_token=None)
        return reads.fencing_check(self.state, number, lock_key, fencing_token, self._at(now_ms))

    # --- the graph: of a namespace that is known ------------------------------------------------------------------

    def resource(self, namespace: str, resource_id: str, now_ms: int | None = None) -> graphreads.ResourceView | None:
        slot = resources.find(self.state, self.state.namespaces.by_name[namespace], resource_id)
        return None if slot < 0 else graphreads.resource(self.state, slot, self._at(now_ms))

    def resources(
        self, namespace: str, wanted: graphreads.Standing | None, provider: str, prefix: str, start: int, limit: int,
        now_ms: int | None = None,
    ) -> tuple[list[graphreads.ResourceView], int | None]:  # fmt: skip
        """A page, and where the next one starts; None at the end."""
        state, space = self.state, self.state.namespaces.by_name[namespace]
        found, after = graphreads.resource_page(state, space, wanted, provider, prefix, start, limit)
        return [graphreads.resource(state, slot, self._at(now_ms)) for slot in found], after

    def reclaims(
        self, namespace: str, wanted: graphreads.Progress | None, provider: str, kind: str, start: int, limit: int,
        now_ms: int | None = None,
    ) -> tuple[list[graphreads.ReclaimView], int | None]:  # fmt: skip
        state, space = self.state, self.state.namespaces.by_name[namespace]
        found, after = graphreads.reclaim_page(state, space, wanted, provider, kind, start, limit)
        return [graphreads.reclaim(state, slot, self._at(now_ms)) for slot in found], after

    def edges(
        self, namespace: str, source: str | None, target: str | None, start: int | None, limit: int
    ) -> tuple[list[graphreads.EdgeView], int | None] | None:
        """A page of the edges out of `source` or into `target`; None if the edge that it starts with was cut."""
        state, space = self.state, self.state.namespaces.by_name[namespace]
        ends = [-1 if each is None else resources.find(state, space, each) for each in (source, target)]
        if any(end < 0 and each is not None for end, each in zip(ends, (source, target), strict=True)):
            return [], None
        page = graphreads.edge_page(state, ends[0], ends[1], start, limit)
        return None if page is None else ([graphreads.edge(state, edge) for edge in page[0]], page[1])

    def surroundings(
        self, namespace: str, resource_id: str, depth: int, limit: int, now_ms: int | None = None
    ) -> surroundings.Surroundings | None:
        """What is up to `depth` edges away from a resource; None when there is no such resource."""
        slot = resources.find(self.state, self.state.namespaces.by_name[namespace], resource_id)
        return None if slot < 0 else surroundings.around(self.state, slot, depth, limit, self._at(now_ms))

    def lanes(self, namespace: str, provider: str, kind: str, now_ms: int | None = None) -> list[graphreads.LaneView]:
        space = self.state.namespaces.by_name[namespace]
        return graphreads.lanes(self.state, space, provider, kind, self._at(now_ms))

    def claimable(self, namespace: str, provider: str, kinds: tuple[str, ...], now_ms: int | None = None) -> bool:
        space = self.state.namespaces.by_name.get(namespace)
        return space is not None and graphreads.claimable(self.state, space, provider, kinds, self._at(now_ms))

    # --- queues of tasks and shards -------------------------------------------------------------------------------

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(self.state)

    # --- copies and tombstones ------------------------------------------------------------------------------------

    @property
    def copies(self) -> CopyReads:
        return CopyReads(self.state)

    # --- who may do what, and who did -----------------------------------------------------------------------------

    def token(self, token_id: str) -> AccessToken | None:
        return self.state.access.tokens.get(token_id)

    def tokens(self, after: str, limit: int) -> list[AccessToken]:
        """A page by id, those after `after`."""
        known = self.state.access.tokens
        return [known[each] for each in sorted(each for each in known if each > after)[:limit]]

    def actions(self, before: int | None, limit: int) -> list[Action]:
        """Of the audit trail, newest first; `before`: those of smaller numbers."""
        trail = self.state.access.trail
        newest = trail.last if before is None else min(trail.last, before - 1)
        return [trail.actions[place] for place in islice(trail.places(newest), limit)]

    @property
    def access_changed(self) -> int:
        """The last revision that changed an access token, as far as this node has applied the entries itself."""
        return self.state.access.changed

    # --- the whole ------------------------------------------------------------------------------------------------

    def knows(self, namespace: str) -> bool:
        return namespace in self.state.namespaces.by_name

    def requests_per_s(self, namespace: str) -> int | None:
        """How often it may ask each node; None if there is no such namespace."""
        known = self.state.namespaces.by_name.get(namespace)
        return None if known is None else known.quotas.requests_per_s

    def namespaces(self) -> list[reads.NamespaceView]:
        return reads.namespaces(self.state)

    def due(self, now_ms: int) -> bool:
        return reads.due(self.state, now_ms)

    def timed(self) -> bool:
        return reads.timed(self.state)

    def counts(self) -> reads.Counts:
        return reads.counts(self.state)

    def graph_counts(self) -> graphcounts.GraphCounts:
        return graphcounts.graph_counts(self.state)

    def reclaim_counts(self, now_ms: int | None = None) -> graphcounts.ReclaimCounts:
        return graphcounts.reclaim_counts(self.state, self._at(now_ms))

    def audit(self) -> Audit:
        return Audit(self.state)
