"""Clean-ups: handed to workers under a claim with a token, until one acknowledges that it is done.

A lane holds one kind of one provider. What fails is tried again later and later, and given up as a dead letter in the
end; a lane in which everything fails is closed for a while and then tried one at a time. Other lanes never notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

import numpy as np

from coordinator.machine import resources
from coordinator.machine.chains import Chain, members
from coordinator.machine.columns import Slots
from coordinator.machine.commands import (
    AckReclaims,
    NackReclaim,
    PurgeReclaims,
    RenewReclaims,
    RetryReclaims,
    ReturnReclaims,
)
from coordinator.machine.departures import forget_many
from coordinator.machine.events import Event, EventKind
from coordinator.machine.graph import (
    CLAIMED,
    DEAD,
    DEAD_LETTERS,
    DELAYED,
    DYING,
    LIVE,
    PENDING,
    READY,
    Lane,
    push,
    push_many,
    take_out,
)
from coordinator.machine.levels import FORMERS
from coordinator.machine.limits import (
    BACK_OFF_MS,
    LANE_FAILURES,
    MAX_ATTEMPTS,
    MAX_BACK_OFF_MS,
    NEVER_MS,
    TOGETHER,
)
from coordinator.machine.names import CLIENT, KIND, PROVIDER
from coordinator.machine.namespaces import Namespace
from coordinator.machine.requests import key_of
from coordinator.machine.results import (
    RECLAIM_VERDICTS,
    DeadLettersMoved,
    Denied,
    ReclaimNacked,
    ReclaimsAnswered,
    ReclaimVerdict,
    Result,
)
from coordinator.machine.state import SLOT_MASK, State

# --- lanes ----------------------------------------------------------------------------------------------------------


def lane_of(state: State, slot: int) -> Lane:
    lanes = state.lanes.setdefault(state.resources.provider[slot], {})
    return lanes.setdefault(state.resources.kind[slot], Lane(Chain(), Chain()))


def _leave(state: State, slot: int) -> Lane:
    """Takes a clean-up out of whatever it is in."""
    table, lane = state.resources, lane_of(state, slot)
    status = table.state[slot]
    if status == PENDING:
        take_out(table, lane.ready, slot)
    elif status == DEAD:
        take_out(table, lane.dead, slot)
    elif status == DELAYED:
        lane.delayed -= 1
    elif status == CLAIMED:
        lane.claimed -= 1
    table.touch(slot)
    table.expiry_ms[slot] = NEVER_MS
    return lane


def _drop_if_empty(state: State, provider: int, kind: int) -> None:
    lanes = state.lanes[provider]
    if lanes[kind].empty:
        del lanes[kind]
        if not lanes:
            del state.lanes[provider]


def _emit(state: State, kind: EventKind, slot: int) -> None:
    table, names = state.resources, state.names
    name, owner = table.name[slot], names.text(table.provider[slot])
    state.emit(kind, names.namespace[name], names.text(name), owner, state.resource_id(slot), token=table.token[slot])


def emit_many(state: State, kind: EventKind, slots: Slots, owner: str | None = None) -> list[Event]:
    """One event each, in order: of the owner, or of its provider."""
    names, rows = state.names, state.resources.rows.take(slots)
    named = names.rows.take(rows["name"])
    keys = names.arena.texts(named["offset"].tolist(), named["length"].tolist())
    numbers = (rows["generation"].astype(np.uint64) << np.uint64(32) | slots.astype(np.uint64)).tolist()
    providers, tokens = rows["provider"].tolist(), rows["token"].tolist()
    whose = {
        provider: (state.namespace_of(provider).name, names.text(provider) if owner is None else owner)
        for provider in dict.fromkeys(providers)
    }
    told = [
        Event(state.revision, kind, whose[provider][0], key, whose[provider][1], number, token)
        for provider, key, number, token in zip(providers, keys, numbers, tokens, strict=True)
    ]
    state.events += told
    return told


def enter(state: State, slot: int) -> None:
    """A resource whose last reference is cut. While its safety buffer runs it waits."""
    if state.resources.hold_ms[slot] > state.now_ms:
        _delay(state, slot, state.resources.hold_ms[slot])
    else:
        ready(state, slot)


def enter_many(state: State, entering: list[int]) -> None:
    """`enter` for one after the other."""
    if len(entering) < TOGETHER:
        for slot in entering:
            enter(state, slot)
        return
    table, slots = state.resources, np.array(entering, dtype=np.int64)
    rows = table.rows.take(slots)
    for slot in slots[rows["hold_ms"] > state.now_ms].tolist():
        _delay(state, slot, table.hold_ms[slot])
    now = rows["hold_ms"] <= state.now_ms
    slots, lanes = slots[now], rows["provider"][now].astype(np.int64) << 32 | rows["kind"][now]
    if not len(slots):
        return
    table.touch_many(slots)
    table.column("state")[slots], table.column("expiry_ms")[slots] = PENDING, NEVER_MS
    for lane in dict.fromkeys(lanes.tolist()):
        own = slots[lanes == lane]
        push_many(table, lane_of(state, int(own[0])).ready, READY, own)
    emit_many(state, "reclaim_pending", slots)


def ready(state: State, slot: int) -> None:
    """To the end of its lane."""
    lane = _leave(state, slot)
    state.resources.state[slot] = PENDING
    push(state.resources, lane.ready, READY, slot)
    _emit(state, "reclaim_pending", slot)


def _delay(state: State, slot: int, until_ms: int) -> None:
    lane = _leave(state, slot)
    table = state.resources
    table.state[slot] = DELAYED
    table.expiry_ms[slot] = until_ms
    lane.delayed += 1
    state.resource_timers.schedule(slot, until_ms)


def _bury(state: State, slot: int) -> None:
    lane = _leave(state, slot)
    state.resources.state[slot] = DEAD
    push(state.resources, lane.dead, DEAD_LETTERS, slot)
    _emit(state, "reclaim_dead", slot)


def abandoned(state: State, slot: int) -> None:
    """The claim ran out: its worker crashed, or is slow. Another gets it."""
    worker = state.names.text(state.resources.worker[slot] - 1)
    state.reasons[slot] = f"{worker} did not report before its claim ran out"
    if state.resources.attempt[slot] >= MAX_ATTEMPTS:
        _bury(state, slot)
    else:
        ready(state, slot)


def open_in(lane: Lane, now_ms: int) -> int:
    """How many may be handed out of a lane then."""
    if lane.failures < LANE_FAILURES:
        return lane.ready.count
    return min(1, lane.ready.count) if lane.closed_until_ms <= now_ms and not lane.claimed else 0


# --- answers of workers ---------------------------------------------------------------------------------------------


def _verdict(state: State, namespace: Namespace, number: int, worker_id: str, token: int) -> ReclaimVerdict:
    """Whether this worker may speak for the clean-up. Also after its claim ran out, until somebody else has it."""
    table = state.resources
    slot = number & SLOT_MASK
    if slot >= table.used or not table.generation[slot]:
        return "unknown"
    if table.generation[slot] != number >> 32:
        return "already_done" if _was_done(state, namespace, number) else "unknown"
    if not table.state[slot] or state.names.namespace[table.name[slot]] != namespace.number:
        return "unknown"
    if table.state[slot] in (LIVE, DYING) or not table.worker[slot] or table.token[slot] != token:
        return "not_holder"
    return "ok" if state.names.text(table.worker[slot] - 1) == worker_id else "not_holder"


def _was_done(state: State, namespace: Namespace, number: int) -> bool:
    """Whether it is an earlier one of its slot: of this namespace, from the level on at which that is remembered."""
    slot, generation = number & SLOT_MASK, number >> 32
    if state.level >= FORMERS:
        return state.formers.had(slot, namespace.number, generation)
    earlier: bool = 0 < generation < state.resources.generation[slot]
    return earlier


def ack(state: State, namespace: Namespace, command: AckReclaims) -> Result:
    """Done, once and for all: the resource is gone, and its id may be registered anew."""
    told = list(_numbered(command.reclaim_ids, command.tokens))
    verdicts = bytearray(len(told))
    done = _done_at_once(state, namespace, command) if len(told) >= TOGETHER else frozenset()
    for at, (number, token) in enumerate(told):
        if at not in done:
            verdict = _verdict(state, namespace, number, command.worker_id, token)
            if verdict == "ok":
                _done(state, number & SLOT_MASK)
            verdicts[at] = RECLAIM_VERDICTS.index(verdict)
    return ReclaimsAnswered(bytes(verdicts))


def _done_at_once(state: State, namespace: Namespace, command: AckReclaims) -> frozenset[int]:
    """What the worker still has is done in one go. Answers their places in the command; the others are looked at
    after that, one by one, and one that is named twice is done already."""
    table, worker = state.resources, state.names.find(CLIENT, namespace.number, command.worker_id)
    numbers, tokens = (np.frombuffer(each, "<u8") for each in (command.reclaim_ids, command.tokens))
    slots = (numbers & np.uint64(SLOT_MASK)).astype(np.int64)
    rows = table.rows.take(np.minimum(slots, table.used - 1)) if table.used else table.rows[:0]
    if worker < 0 or not len(rows):
        return frozenset()
    own = (slots < table.used) & (rows["state"] == CLAIMED) & (rows["worker"] == worker + 1)
    own &= (rows["generation"] == numbers >> np.uint64(32)) & (rows["token"].astype(np.uint64) == tokens)
    places = np.flatnonzero(own)
    _, first = np.unique(slots[places], return_index=True)
    places = places[np.sort(first)]
    if len(places):
        _done_many(state, namespace, slots[places])
    return frozenset(places.tolist())


def _done_many(state: State, namespace: Namespace, slots: Slots) -> None:
    """Of one namespace, all CLAIMED."""
    rows = state.resources.rows.take(slots)
    emit_many(state, "reclaim_done", slots)
    state.reclaimed += len(slots)
    lanes = Counter(zip(rows["provider"].tolist(), rows["kind"].tolist(), strict=True))
    for (provider, kind), count in lanes.items():
        lane = state.lanes[provider][kind]
        lane.claimed -= count
        lane.failures = lane.closed_until_ms = 0
        _drop_if_empty(state, provider, kind)
    forget_many(state, namespace, slots)


def _done(state: State, slot: int) -> None:
    table = state.resources
    provider, kind = table.provider[slot], table.kind[slot]
    lane = _leave(state, slot)
    lane.failures = lane.closed_until_ms = 0
    state.reclaimed += 1
    _emit(state, "reclaim_done", slot)
    _drop_if_empty(state, provider, kind)
    resources.forget(state, slot)


def renew(state: State, namespace: Namespace, command: RenewReclaims) -> Result:
    table, verdicts = state.resources, bytearray()
    for number, token in _numbered(command.reclaim_ids, command.tokens):
        verdict = _verdict(state, namespace, number, command.worker_id, token)
        slot = number & SLOT_MASK
        if verdict == "ok" and (table.state[slot] != CLAIMED or table.expiry_ms[slot] <= state.now_ms):
            verdict = "not_holder"
        if verdict == "ok":
            table.touch(slot)
            table.expiry_ms[slot] = max(table.expiry_ms[slot], state.now_ms + command.claim_ms)
        verdicts.append(RECLAIM_VERDICTS.index(verdict))
    return ReclaimsAnswered(bytes(verdicts))


def give_back(state: State, namespace: Namespace, command: ReturnReclaims) -> Result:
    """In one step, because a repeated claim may come at any time: it is in time and keeps all, or begins anew."""
    if command.request_id is not None:
        request = key_of(namespace.number, command.request_id)
        known = state.requests.remembered.get(request)
        if known is not None and known.asked > command.asked:
            return Denied("asked_again", "the claim was asked for again since, and whoever did has what it got")
        state.requests.forget(request)
    verdicts = bytearray()
    for number, token in _numbered(command.reclaim_ids, command.tokens):
        verdict = _verdict(state, namespace, number, command.worker_id, token)
        slot = number & SLOT_MASK
        if verdict == "ok" and state.resources.state[slot] != CLAIMED:
            verdict = "not_holder"
        if verdict == "ok":
            ready(state, slot)
            state.resources.attempt[slot] -= 1
        verdicts.append(RECLAIM_VERDICTS.index(verdict))
    return ReclaimsAnswered(bytes(verdicts))


def nack(state: State, namespace: Namespace, command: NackReclaim) -> Result:
    verdict = _verdict(state, namespace, command.reclaim_id, command.worker_id, command.token)
    slot = command.reclaim_id & SLOT_MASK
    if verdict in ("unknown", "already_done"):
        return Denied("unknown_reclaim", "there is no such clean-up, or it is done", {"field": "reclaim_id"})
    if verdict == "not_holder" or state.resources.state[slot] != CLAIMED:
        return Denied("not_holder", "the claim ran out; the clean-up is another's, or will be", {"field": "token"})
    state.reasons[slot] = command.reason
    lane, attempt = lane_of(state, slot), state.resources.attempt[slot]
    lane.failures += 1
    if lane.failures >= LANE_FAILURES:
        lane.closed_until_ms = state.now_ms + _back_off_ms(lane.failures - LANE_FAILURES)
    if attempt >= MAX_ATTEMPTS:
        _bury(state, slot)
        return ReclaimNacked(dead=True, attempt=attempt, retry_in_ms=0)
    retry_in_ms = _back_off_ms(attempt - 1) if command.retry_in_ms is None else command.retry_in_ms
    _delay(state, slot, state.now_ms + retry_in_ms)
    _emit(state, "reclaim_failed", slot)
    return ReclaimNacked(dead=False, attempt=attempt, retry_in_ms=retry_in_ms)


def _back_off_ms(times: int) -> int:
    return min(BACK_OFF_MS << min(times, 32), MAX_BACK_OFF_MS)


def _numbered(numbers: bytes, tokens: bytes) -> Iterator[tuple[int, int]]:
    return zip(np.frombuffer(numbers, "<u8").tolist(), np.frombuffer(tokens, "<u8").tolist(), strict=True)


# --- dead letters ---------------------------------------------------------------------------------------------------


def retry(state: State, namespace: Namespace, command: RetryReclaims) -> Result:
    """As if new: all attempts again."""
    dead, left = _dead(state, namespace, command)
    for slot in dead:
        lane = lane_of(state, slot)
        lane.failures = lane.closed_until_ms = 0
        ready(state, slot)
        state.resources.attempt[slot] = 0
    return DeadLettersMoved(len(dead), left)


def purge(state: State, namespace: Namespace, command: PurgeReclaims) -> Result:
    dead, left = _dead(state, namespace, command)
    for slot in dead:
        provider, kind = state.resources.provider[slot], state.resources.kind[slot]
        _leave(state, slot)
        _emit(state, "reclaim_purged", slot)
        _drop_if_empty(state, provider, kind)
        resources.forget(state, slot)
    return DeadLettersMoved(len(dead), left)


def _dead(state: State, namespace: Namespace, command: RetryReclaims | PurgeReclaims) -> tuple[list[int], int]:
    """The oldest dead letters that match, as many as asked for, and how many more there are."""
    lanes = state.lanes.get(state.names.find(PROVIDER, namespace.number, command.provider), {})
    if command.kind:
        kind = state.names.find(KIND, namespace.number, command.kind)
        lanes = {kind: lanes[kind]} if kind in lanes else {}
    slots = chain.from_iterable(members(state.resources, lane.dead) for lane in lanes.values())
    found = list(islice(slots, command.max))
    return found, sum(lane.dead.count for lane in lanes.values()) - len(found)
