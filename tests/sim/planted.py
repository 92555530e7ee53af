"""Bugs to plant: guards of the product that tests take out, each with the workload that should find it missing.

`python -m tests.sim --planted` says which check found which one, after how many seeds. Guards that only a particular
schedule misses have theirs in tests/hazards and tests/lease.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest

from cluster.frames import LinkGuards
from cluster.guards import ALL_ON
from cluster.journal import JournalGuards
from cluster.status import StatusBoard
from coordinator.client import calls, watch
from coordinator.client.guards import ObjectGuard
from coordinator.client.lock import Body
from coordinator.machine import (
    garbage,
    holders,
    leases,
    locks,
    reclaims,
    resources,
    shards,
    snapshot,
    taskmoves,
    tasks,
    waiters,
)
from coordinator.machine.copies import Copies
from coordinator.machine.levels import LEVEL
from coordinator.machine.requests import Requests
from coordinator.machine.sketch import Sketch
from coordinator.machine.state import State
from coordinator.machine.taskrows import HELD
from coordinator.service import ReadPoint, Service
from coordinator.sweeper import Sweeper
from tests.sim.workloads import run_seed

SEEDS = 60
LOST_EVERY = 10

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Planted:
    """`found_by`: the invariants that may tell of it, or the exceptions that nobody catches. `seed`: one known to."""

    name: str
    workload: str
    found_by: frozenset[str]
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    patch: Patch = lambda monkeypatch: None


class Finding(NamedTuple):
    invariant: str | None
    seeds: int


def find(planted: Planted, first: int = 0) -> Finding:
    """The invariant that the first failing seed breaks, and how many seeds that took."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        planted.patch(monkeypatch)
        for tried in range(SEEDS):
            result = run_seed(planted.workload, (first + tried) % SEEDS, **planted.options)
            if result.invariant is not None:
                return Finding(result.invariant, tried + 1)
    return Finding(None, SEEDS)


def report(say: Callable[[str], None]) -> list[list[str | int]]:
    """Of each: its name, the workload, the check that found it, after how many seeds. Seeds are tried from 0 on."""
    rows: list[list[str | int]] = []
    for planted in PLANTED:
        finding = find(planted)
        found = finding.invariant if finding.invariant in planted.found_by else f"NOT FOUND ({finding.invariant})"
        say(f"{planted.name:<40} {planted.workload:<10} {found:<22} {finding.seeds:>3} seeds")
        rows.append([planted.name, planted.workload, found or "", finding.seeds])
    return rows


# --- the graph, dispatch, copies --------------------------------------------------------------------------------------


def _believe_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    join = garbage._join

    def join_satisfied(state: Any, slot: int, proposal: Any) -> None:
        join(state, slot, proposal)
        proposal.satisfied = len(proposal.members)

    monkeypatch.setattr(garbage, "_join", join_satisfied)
    monkeypatch.setattr(garbage, "_may_join", lambda state, slot, number: resources.is_usable(state, slot))
    monkeypatch.setattr(resources, "disturb", lambda state, slot: None)


def _suspect_few(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = resources.lost

    def lost_if_last(state: State, slot: int, *, expired: bool = False) -> None:
        if not state.resources.in_count[slot]:
            lost(state, slot, expired=expired)

    monkeypatch.setattr(resources, "lost", lost_if_last)


def _take_late_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = reclaims._verdict

    def newest(state: State, namespace: Any, number: int, worker_id: str, token: int) -> Any:
        slot = number & reclaims.SLOT_MASK
        return verdict(state, namespace, number, _worker(state, slot, worker_id), state.resources.token[slot])

    monkeypatch.setattr(reclaims, "_verdict", newest)


def _worker(state: State, slot: int, worker_id: str) -> str:
    worker = state.resources.worker[slot]
    return str(state.names.text(worker - 1)) if worker else worker_id


def _skip_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "begin_buffer", lambda state, slot: None)


def _complete_for_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = tasks._verdict

    def believing(state: State, queue: Any, number: int, worker: int, token: int) -> str:
        slot = state.slot_of(state.tasks, number)
        return "ok" if slot >= 0 and state.tasks.state[slot] in HELD else verdict(state, queue, number, worker, token)

    monkeypatch.setattr(tasks, "_verdict", believing)


def _forget_revoked_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = taskmoves.ready

    def ready_once(state: State, slot: int) -> None:
        if state.tasks.bounces[slot]:
            taskmoves.delay(state, slot, state.now_ms + 3_600_000)
        else:
            ready(state, slot)

    monkeypatch.setattr(taskmoves, "ready", ready_once)


def _move_shards_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_ask_back", shards.give_up)


def _purge_by_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(self: Copies, namespace: int) -> None:
        row, marks = self.rows.get(namespace), self.watermarks.get(namespace, [])
        self.due.pop(namespace, None)
        if row is not None:
            acked = Sketch()
            acked.add_all(str(name) for mark, name in marks if mark >= row.oldest)
            if acked.estimate() >= Sketch.from_bytes(self.tombstones[row.names[row.first]].holders).estimate():
                self.due[namespace] = None

    monkeypatch.setattr(Copies, "look", look)


def _judge_copies_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is alive under the same name may be another life of it."""
    alive = holders._alive

    def by_name(state: State, namespace: Any, resource_id: str, incarnation: int) -> int:
        slot = resources.find(state, namespace, resource_id)
        return alive(state, namespace, resource_id, state.resource_id(slot) if slot >= 0 else incarnation)

    monkeypatch.setattr(holders, "_alive", by_name)


# --- locks, leases, sessions ------------------------------------------------------------------------------------------


def _restore_without_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what a node derives when it is restored were not all that it has when it goes on."""
    read = snapshot.read

    def forgetful(chunks: Iterable[bytes], known_level: int = LEVEL) -> State:
        state = read(chunks, known_level)
        state.agenda.clear()
        return state

    monkeypatch.setattr(snapshot, "read", forgetful)


def _reuse_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the counter went with the lock."""
    monkeypatch.setattr(State, "next_token", lambda self: self.active_leases + 1)


def _last_come_first_served(monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue = State.enqueue

    def enqueue_first(self: State, waiter: Any) -> None:
        enqueue(self, waiter)
        for key in waiter.keys:
            self.queues[key] = {waiter.waiter_id: None} | self.queues[key]

    monkeypatch.setattr(State, "enqueue", enqueue_first)


def _grant_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "alive", lambda state, waiter: True)


def _forget_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Requests, "recall", lambda self, key, fingerprint, now_ms, revision: None)


def _renew_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered, and the lease ends when it would have."""

    def extend(state: State, slot: int, ttl_ms: int) -> int:
        return int(state.now_ms + ttl_ms)

    monkeypatch.setattr(leases, "extend", extend)


def _hand_over_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release frees the lock, and the next waiter is granted with the next command for it."""
    monkeypatch.setattr(locks, "settle", lambda state, keys: None)


def _let_two_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "fits", lambda state, ask, key: True)


def _read_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(self: Service, consistency: str, max_staleness_ms: int, timeout: float) -> ReadPoint:
        return ReadPoint(self.revision, self.now_ms(), 0)

    monkeypatch.setattr(Service, "read", read)


def _count_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of something that was refused, in what all nodes must agree on."""
    hold = locks._hold

    def counted(state: State, namespace: Any, command: Any) -> Any:
        state.next_token()
        return hold(state, namespace, command)

    monkeypatch.setattr(locks, "_hold", counted)


def _share_what_is_held_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = locks.fits

    def roomy(state: State, ask: Any, key: int) -> bool:
        lock = state.locks.get(key)
        alone = lock is not None and lock.holders and lock.mode == "exclusive"
        return fits(state, ask, key) or bool(alone and ask.mode == "shared")

    for module in (locks, waiters):
        monkeypatch.setattr(module, "fits", roomy)


def _overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is room for it, a request is granted though others wait."""
    rule = locks._rule

    def hasty(state: State, namespace: Any, ask: Any, block_time_ms: int) -> Any:
        found = rule(state, namespace, ask, block_time_ms)
        new = all(locks.held_slot(state, key, ask.client) < 0 for key in ask.keys)
        return locks.grant if new and all(locks.fits(state, ask, key) for key in ask.keys) else found

    monkeypatch.setattr(locks, "_rule", hasty)


def _fail_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged, and the loop goes on."""
    turn = Sweeper.turn

    async def failing(self: Sweeper) -> float:
        await turn(self)
        raise RuntimeError("planted")

    monkeypatch.setattr(Sweeper, "turn", failing)


def _never_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sweeper, "wanted", lambda self: False)


def _sweep_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a second and a half."""

    def wanted(self: Sweeper) -> bool:
        return bool(self._service.machine.due(self._service.now_ms() - 1_500))

    monkeypatch.setattr(Sweeper, "wanted", wanted)


# --- the SDK, upgrades ------------------------------------------------------------------------------------------------


def _let_bodies_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Body, "cancel", lambda self: None)


def lose_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what changes something, one in so many: seldom enough does a plan break a connection just then."""
    attempt, answered = calls.Calls._attempt, itertools.count(1)

    async def unheard(self: calls.Calls, request: Any, endpoint: str, limit_s: float) -> calls.Answer:
        answer = await attempt(self, request, endpoint, limit_s)
        if request.body is not None and "request_id" in request.body and next(answered) % LOST_EVERY == 0:
            raise calls._Retry("its answer was lost", unknown=True)
        return answer

    monkeypatch.setattr(calls.Calls, "_attempt", unheard)


def _new_id_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_answers(monkeypatch)
    attempt = calls.Calls._attempt

    async def anew(self: calls.Calls, request: Any, endpoint: str, limit_s: float) -> calls.Answer:
        if request.body is not None and "request_id" in request.body:
            request = replace(request, body={**request.body, "request_id": calls.new_request_id()})
        return await attempt(self, request, endpoint, limit_s)

    monkeypatch.setattr(calls.Calls, "_attempt", anew)


def _watch_on_from_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a break, instead of from where it was."""
    stream, begun = watch._stream, set()

    async def resumed(client: Any, query: dict[str, str]) -> AsyncGenerator[Any, None]:
        first = client not in begun
        begun.add(client)
        left_out = {} if first else {"after": query["after"]}
        async with aclosing(stream(client, dict(query.items() - left_out.items()))) as places:
            async for place in places:
                yield place

    monkeypatch.setattr(watch, "_stream", resumed)


def _let_old_tokens_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(guard: ObjectGuard, content: bytes, token: int, *, once: bool = False) -> None:
        guard._store(content, token, guard._load()[1])

    monkeypatch.setattr(ObjectGuard, "write", write)


def _raise_the_level_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatusBoard, "common_level", lambda board: board._node.levels.known_level)


def _plant(name: str, workload: str, found_by: str, patch: Patch, seed: int = 0) -> Planted:
    return Planted(name, workload, frozenset(found_by.split()), seed, patch=patch)


def _off(name: str, found_by: str, seed: int = 0, **options: Any) -> Planted:
    return Planted(name, "registers", frozenset(found_by.split()), seed, options)


PLANTED = (
    # A log with a hole where it was "synced" refuses to start; if the hole is at its end, writes or votes are lost.
    _off(
        "acknowledge before fdatasync",
        "JournalCorrupt JournalHole durable log_matching leader_completeness",
        guards=replace(ALL_ON, journal=JournalGuards(fsync=False)),
    ),
    _off("accept a frame twice", "durable one_answer", link_guards=LinkGuards(frame_sequence=False)),
    _off("charge an outage to the clock", "clock_bounds", 4, guards=replace(ALL_ON, clock_step=False)),
    _off("a proposal that never ends", "one_answer", 1, guards=replace(ALL_ON, proposal_deadline=False)),
    _plant("believe the collector", "graph", "reachable_stays", _believe_the_collector, 18),
    _plant("suspect only the unreferenced", "graph", "garbage_goes no_errors_logged", _suspect_few, 2),
    _plant("take late acknowledgements", "graph", "one_effect", _take_late_acknowledgements, 23),
    _plant("skip the safety buffer", "graph", "reachable_stays", _skip_the_buffer),
    _plant("complete a task for anybody", "tasks", "one_owner", _complete_for_anybody, 2),
    _plant("forget revoked tasks", "tasks", "at_least_once", _forget_revoked_tasks),
    _plant("move a shard in one step", "tasks", "one_owner", _move_shards_at_once),
    _plant("purge tombstones by estimate", "copies", "exact_purge no_resurrection", _purge_by_estimate),
    _plant("judge copies by name alone", "copies", "no_resurrection", _judge_copies_by_name),
    _plant("restore without deadlines", "crowds", "digest_equal", _restore_without_deadlines),
    _plant("share what one holds alone", "crowds", "holds_fit", _share_what_is_held_alone),
    _plant("let who comes overtake who waits", "crowds", "grant_order", _overtake),
    _plant("errors that only the log tells of", "crowds", "no_errors_logged", _fail_in_a_loop),
    _plant("reuse fencing tokens", "locks", "token_order fencing exclusive_holds", _reuse_tokens),
    _plant("let old tokens write", "locks", "fencing", _let_old_tokens_write),
    _plant("serve the last waiter first", "locks", "grant_order", _last_come_first_served),
    _plant("grant to waiters that are gone", "locks", "grant_order", _grant_the_dead, 42),
    _plant("forget request ids", "locks", "linearizable grant_order", _forget_requests),
    _plant("renewals without effect", "locks", "no_early_expiry linearizable fencing", _renew_nothing),
    _plant("no hand-over at release", "locks", "free_lock_granted linearizable", _hand_over_later),
    _plant("let two in", "locks", "exclusive_holds", _let_two_in),
    _plant("read without asking the leader", "locks", "own_revisions linearizable", _read_anything),
    _plant("refusals that leave a trace", "locks", "refusals", _count_refusals, 2),
    _plant("never sweep", "locks", "expired_goes progress", _never_sweep),
    _plant("sweep a second and a half late", "locks", "expired_goes", _sweep_late, 1),
    _plant("a body that is not cancelled", "sdk", "one_body", _let_bodies_go_on, 9),
    _plant("a new request id for each attempt", "sdk", "one_effect linearizable", _new_id_each_attempt, 6),
    _plant("a watch that goes on from now", "sdk", "every_event progress", _watch_on_from_now, 6),
    _plant("raise the level without the others", "upgrade", "stays_up", _raise_the_level_alone, 6),
)
