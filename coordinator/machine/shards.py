"""Shards: shared out among the workers of a queue, evenly, moving as few as can be, and never to two at a time.

A shard that is to move is asked back from its owner first (`revoking`), and is another's only when the owner gave it
back, left, or was lost. Every new owner gets a new token. Who is suspected keeps what it has and gets nothing more.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.machine import queues
from coordinator.machine.budget import Budget
from coordinator.machine.events import EventKind
from coordinator.machine.limits import MAX_ALL_SHARDS, MAX_SHARED_OUT
from coordinator.machine.namespaces import Namespace
from coordinator.machine.results import Denied, Result
from coordinator.machine.state import State
from coordinator.machine.taskcommands import PutShards
from coordinator.machine.taskresults import ShardsPut
from coordinator.machine.taskrows import LOST, PRESENT, Queue, Shard, Worker

SHARDS_PER_EXPIRY = 100
"""Looking at so many shards counts like ending one lease: so much does an entry do of its own accord."""


def put(state: State, namespace: Namespace, command: PutShards) -> Result:
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    wanted = dict.fromkeys(command.shards)
    added = [name for name in wanted if name not in queue.shards or queue.shards[name].removed]
    removed = [name for name, shard in queue.shards.items() if name not in wanted and not shard.removed]
    others = sum(len(each.shards) for each in state.task_queues.values() if each is not queue)
    if others + len(wanted) + len(removed) > MAX_ALL_SHARDS:
        return Denied("capacity_exceeded", f"the cluster holds at most {MAX_ALL_SHARDS} shards")
    for name in sorted(removed):
        _remove(state, queue, queue.shards[name])
    for name in sorted(added):
        known = queue.shards.get(name)
        queue.shards[name] = Shard(name) if known is None else replace(known, removed=False)
    return ShardsPut(len(added), len(removed), share_out(state, queue))


def _remove(state: State, queue: Queue, shard: Shard) -> None:
    if not shard.worker:
        del queue.shards[shard.name]
        return
    if not shard.revoking:
        _ask_back(state, queue, shard)
    queue.shards[shard.name] = replace(queue.shards[shard.name], removed=True)


# --- one shard --------------------------------------------------------------------------------------------------------


def _emit(state: State, kind: EventKind, queue: Queue, shard: Shard) -> None:
    key = f"{queue.text}/{shard.name}"
    owner = state.names.text(state.workers[shard.worker].client)
    state.emit(kind, queue.namespace, key, owner, token=shard.token)


def _changed(state: State, number: int) -> None:
    """The worker's assignment is another now. Versions are tokens too: no worker meets one twice, in no other life."""
    state.workers[number] = replace(state.workers[number], version=state.next_token())


def _ask_back(state: State, queue: Queue, shard: Shard) -> None:
    queue.shards[shard.name] = shard = replace(shard, revoking=True)
    _changed(state, shard.worker)
    _emit(state, "shard_revoking", queue, shard)


def _keep(state: State, queue: Queue, shard: Shard) -> None:
    """It was asked back and need not be given any more."""
    queue.shards[shard.name] = shard = replace(shard, revoking=False)
    _changed(state, shard.worker)
    _emit(state, "shard_assigned", queue, shard)


def _assign(state: State, queue: Queue, shard: Shard, number: int) -> None:
    queue.shards[shard.name] = shard = replace(shard, worker=number, token=state.next_token(), revoking=False)
    queue.owned.setdefault(number, {})[shard.name] = None
    _changed(state, number)
    _emit(state, "shard_assigned", queue, shard)


def give_up(state: State, queue: Queue, shard: Shard) -> None:
    """Its owner does not have it any more. The caller shares it out."""
    _emit(state, "shard_released", queue, shard)
    _changed(state, shard.worker)
    owned = queue.owned[shard.worker]
    del owned[shard.name]
    if not owned:
        del queue.owned[shard.worker]
    if shard.removed:
        del queue.shards[shard.name]
    else:
        queue.shards[shard.name] = replace(shard, worker=0, revoking=False)


# --- all of them ------------------------------------------------------------------------------------------------------


def drain(state: State, budget: Budget) -> None:
    """Shares out what lost workers had, and what was too much for one entry, within `budget`."""
    for name in sorted(state.unbalanced):
        if budget.expiries <= 0:
            return
        queue = state.task_queues[name]
        budget.expiries -= 1 + (len(queue.shards) + len(queue.workers)) // SHARDS_PER_EXPIRY
        balance(state, queue)


def share_out(state: State, queue: Queue) -> int:
    """For a command: at once, unless those before it in this entry made enough work for one."""
    if state.shared_out >= MAX_SHARED_OUT:
        state.unbalanced[queue.name] = None
        return 0
    state.shared_out += len(queue.shards) + len(queue.workers)
    return balance(state, queue)


def balance(state: State, queue: Queue) -> int:
    """Gives every worker its share and answers how many shards changed, or will change, hands."""
    state.unbalanced.pop(queue.name, None)
    members = [state.workers[number] for number in sorted(queue.workers.values())]
    members = [worker for worker in members if worker.state != LOST]
    kept: dict[int, list[Shard]] = {}
    asked_back: dict[int, list[Shard]] = {}
    for worker in members:
        mine = [queue.shards[name] for name in queue.owned.get(worker.number, ())]
        mine = sorted((shard for shard in mine if not shard.removed), key=lambda shard: shard.token)
        kept[worker.number] = [shard for shard in mine if not shard.revoking]
        asked_back[worker.number] = [shard for shard in mine if shard.revoking]
    shares = _shares(members, kept, sum(1 for shard in queue.shards.values() if not shard.removed))
    moved = 0
    for number, share in shares.items():
        for shard in kept[number][share:]:
            _ask_back(state, queue, shard)
            moved += 1
        room = max(0, share - len(kept[number]))
        for shard in asked_back[number][:room]:
            _keep(state, queue, shard)
            kept[number].append(shard)
    free = iter(sorted(name for name, shard in queue.shards.items() if not shard.worker))
    for number, share in shares.items():
        for _ in range(share - len(kept[number])):
            name = next(free, None)
            if name is None:
                return moved
            _assign(state, queue, queue.shards[name], number)
            moved += 1
    return moved


def _shares(members: list[Worker], kept: dict[int, list[Shard]], shards: int) -> dict[int, int]:
    """How many shards each worker should have: as even as their capacities allow, and as many as there are."""
    most: dict[int, int] = {}
    for worker in members:
        room = 0 if worker.leaving else worker.capacity or shards
        most[worker.number] = min(room, shards if worker.state == PRESENT else len(kept[worker.number]))
    shares = dict.fromkeys(most, 0)
    left = shards
    growing = sorted((number for number in most if most[number]), key=lambda number: (most[number], number))
    # Level by level: whoever takes the fewest is full first, and what is left is for the others.
    for place, number in enumerate(growing):
        level = left // (len(growing) - place)
        if most[number] > level:
            # Who has more already gets one of those left over: then the fewest move.
            rest = sorted(growing[place:], key=lambda each: (-len(kept[each]), each))
            for rank, each in enumerate(rest):
                shares[each] = level + (rank < left - level * len(rest))
            return shares
        shares[number] = most[number]
        left -= most[number]
    return shares
