"""Clean-ups on their way to a worker: which ones it gets, and under which tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np

from coordinator.machine.chains import cut_head
from coordinator.machine.commands import ClaimReclaims
from coordinator.machine.graph import CLAIMED, NO_LIST, Lane
from coordinator.machine.names import CLIENT, KIND, PROVIDER
from coordinator.machine.namespaces import Namespace
from coordinator.machine.reclaims import emit_many, open_in
from coordinator.machine.results import Reclaim, ReclaimsClaimed, Result
from coordinator.machine.state import State


def claim(state: State, namespace: Namespace, command: ClaimReclaims) -> Result:
    """Whatever the quota of names: a namespace that is full is emptied by its workers."""
    provider = state.names.find(PROVIDER, namespace.number, command.provider)
    lanes = state.lanes.get(provider, {})
    if command.kinds:
        named = [state.names.find(KIND, namespace.number, kind) for kind in command.kinds]
        wanted = [kind for kind in named if kind in lanes]
    else:
        wanted = list(lanes)
    items: list[Reclaim] = []
    taken = _next(state, lanes, wanted, command.max)
    if taken:
        worker = state.names.intern(CLIENT, namespace.number, command.worker_id)
        items = _hand_out(state, lanes, taken, worker, command.claim_ms)
        state.names.drop(worker)
    left = sum(open_in(lanes[kind], state.now_ms) for kind in wanted)
    retry_in_ms = None if items or left else _retry_in_ms(state, [lanes[kind] for kind in wanted])
    return ReclaimsClaimed(tuple(items), command.claim_ms, state.now_ms + command.claim_ms, left, retry_in_ms)


def _next(state: State, lanes: dict[int, Lane], kinds: list[int], most: int) -> list[int]:
    """Takes turns between the lanes; those that were served, or had nothing to give, go last the next time."""
    following = state.resources.next
    left = {kind: open_in(lanes[kind], state.now_ms) for kind in kinds}
    places = {kind: lanes[kind].ready.first for kind in kinds}
    found: list[int] = []
    while left and most > 0:
        for kind in list(left):
            if most <= 0:
                break
            if left[kind]:
                most -= 1
                left[kind] -= 1
                slot = places[kind] - 1
                places[kind] = following[slot]
                found.append(slot)
            else:
                del left[kind]
            lanes[kind] = lanes.pop(kind)
    return found


def _hand_out(state: State, lanes: dict[int, Lane], taken: list[int], worker: int, claim_ms: int) -> list[Reclaim]:
    """Those are the first ones of their lanes."""
    table, names, count = state.resources, state.names, len(taken)
    slots = np.array(taken, dtype=np.int64)
    rows = table.rows.take(slots)
    kinds = rows["kind"]
    for kind in dict.fromkeys(kinds.tolist()):
        own = slots[kinds == kind].tolist()
        cut_head(table, lanes[kind].ready, own)
        lanes[kind].claimed += len(own)
    for before, times in Counter(rows["worker"][rows["worker"] != 0].tolist()).items():
        names.drop(before - 1, times)
    names.refer(worker, count)
    expiry_ms = state.now_ms + claim_ms
    rows["next"], rows["previous"], rows["list"] = 0, 0, NO_LIST
    rows["worker"], rows["state"], rows["expiry_ms"] = worker + 1, CLAIMED, expiry_ms
    rows["token"] = np.arange(state.last_token + 1, state.last_token + 1 + count)
    rows["attempt"] += 1
    state.last_token += count
    table.touch_many(slots)
    table.put_rows(slots, rows)
    state.resource_timers.schedule_many(slots, np.full(count, expiry_ms, dtype=np.int64))
    told = emit_many(state, "reclaim_claimed", slots, names.text(worker))
    texts = {kind: names.text(kind) for kind in dict.fromkeys(kinds.tolist())}
    attempts, since_ms = rows["attempt"].tolist(), rows["since_ms"].tolist()
    return [
        Reclaim(event.number, event.key, texts[kind], event.fencing_token, attempt, since)
        for event, kind, attempt, since in zip(told, kinds.tolist(), attempts, since_ms, strict=True)
    ]


def _retry_in_ms(state: State, lanes: list[Lane]) -> int | None:
    """When a closed lane opens; None when nothing is known to come."""
    return min(
        (
            lane.closed_until_ms - state.now_ms
            for lane in lanes
            if lane.ready.count and lane.closed_until_ms > state.now_ms
        ),
        default=None,
    )
