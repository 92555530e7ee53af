"""What must be true of the reference graph after every command: `invariants` of resources, edges and clean-ups."""

from __future__ import annotations

from collections import Counter, defaultdict

from coordinator.machine import edges, reclaims, resources
from coordinator.machine.chains import Chain, members
from coordinator.machine.columns import FREE, SlotTable
from coordinator.machine.faults import require
from coordinator.machine.graph import (
    BLOCK,
    CLAIMED,
    DEAD,
    DEAD_LETTERS,
    DELAYED,
    DYING,
    LIVE,
    NO_LIST,
    PENDING,
    POLICY_NAMES,
    READY,
    SUSPECTS,
    UNREFERENCED,
)
from coordinator.machine.levels import FORMERS
from coordinator.machine.limits import NEVER_MS
from coordinator.machine.names import KIND, PROVIDER, RESOURCE
from coordinator.machine.state import ACTIVE, State
from coordinator.machine.timers import bucket_of


def check(state: State) -> None:
    _check_resources(state)
    _check_edges(state)
    _check_holders(state)
    _check_lists(state)
    _check_lanes(state)
    _check_sets(state)
    _check_moments(state)
    _check_formers(state)


def used(table: SlotTable) -> list[int]:
    found: list[int] = table.column("state")[: table.used].nonzero()[0].tolist()
    return found


def _check_resources(state: State) -> None:
    table, names, orphans = state.resources, state.names, 0
    for slot in used(table):
        name = table.name[slot]
        require(table.generation[slot] > 0, "a resource without a generation")
        require(LIVE <= table.state[slot] <= DEAD, "a resource in no known state")
        require(names.state[name] == RESOURCE and names.registered[name] == 1, "a resource's name is not registered")
        require(state.resource_of(name) == slot, "a resource is not found by its name")
        require(names.state[table.provider[slot]] == PROVIDER, "a resource's provider is none")
        require(names.state[table.kind[slot]] == KIND, "a resource's kind is none")
        orphans += resources.is_orphan(state, slot)
        if table.state[slot] > DYING:
            require(not resources.references(state, slot), "a resource is being reclaimed and is referred to")
            require(not table.first_out[slot], "a resource is being reclaimed and refers to others")
    require(orphans == state.orphans, "the number of orphans is wrong")
    registered = sum(1 for name in used(names) if names.registered[name])
    require(registered == table.live, "a name is registered, and its resource is gone")


def _check_edges(state: State) -> None:
    table, rows = state.edges, state.resources
    into, out, blocks = defaultdict(set), defaultdict(set), Counter[int]()
    for edge in used(table):
        source, target = table.source[edge], table.target[edge]
        require(table.state[edge] in POLICY_NAMES, "an edge without a policy")
        require(rows.state[source] in (LIVE, DYING) and rows.state[target] in (LIVE, DYING), "an edge leads nowhere")
        require(edges.find(state, source, target) == edge, "an edge is not found by its ends")
        into[target].add(edge)
        out[source].add(edge)
        blocks[source] += table.state[edge] == BLOCK
        if state.namespace_of(rows.name[source]).acyclic:
            require(0 != rows.rank[source] < rows.rank[target] != 0, "an edge leads against the order")
    require(len(state.edge_index) == table.live, "the index of edges has entries of others")
    for slot in used(rows):
        require(rows.in_count[slot] == len(into[slot]), "a resource's edges are miscounted")
        require(set(table.into(rows.first_in[slot])) == into[slot], "the list of edges into a resource is broken")
        require(set(table.out_of(rows.first_out[slot])) == out[slot], "the list of edges out of a resource is broken")
        require(rows.blocks[slot] == blocks[slot], "the edges that keep a resource from going are miscounted")


def _check_holders(state: State) -> None:
    table, links, held = state.leases, state.holders, defaultdict(set)
    for slot in used(table):
        if table.kind[slot] == RESOURCE and table.state[slot] == ACTIVE:
            held[table.resource[slot]].add(slot)
    for name in used(state.names):
        if state.names.state[name] != RESOURCE:
            continue
        found, at, before = set[int](), state.names.next[name], 0
        while at:
            require(at - 1 not in found and links.before(at - 1) == before, "a resource's list of leases is broken")
            found.add(at - 1)
            before, at = at, links.after(at - 1)
        require(found == held[name], "a resource's list of leases is not what the leases say")


def _chained(state: State, chain: Chain, which: int) -> set[int]:
    found = list(members(state.resources, chain))
    require(len(found) == chain.count == len(set(found)), "a list of resources is miscounted")
    require(all(state.resources.list[slot] == which for slot in found), "a resource is in a list it does not know of")
    return set(found)


def _check_lists(state: State) -> None:
    table = state.resources
    suspects, unreferenced = (
        _chained(state, state.suspects, SUSPECTS),
        _chained(state, state.unreferenced, UNREFERENCED),
    )
    for slot in used(table):
        if not resources.is_usable(state, slot):
            require(table.list[slot] in (NO_LIST, READY, DEAD_LETTERS) or table.state[slot] == LIVE, "a list is wrong")
            continue
        kept = resources.kept_by(state, slot)
        referred = resources.references(state, slot)
        if slot in suspects:
            require(kept is None and referred, "a suspect is kept, or nothing refers to it")
        elif slot in unreferenced:
            require(kept is None and not referred, "a resource that is referred to is listed as garbage")
        else:
            overlooked = kept is None and not referred and table.expiry_ms[slot] > state.now_ms
            require(not overlooked, "garbage was overlooked")


def _check_lanes(state: State) -> None:
    table = state.resources
    by_lane: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for slot in used(table):
        if table.state[slot] > DYING:
            by_lane[table.provider[slot], table.kind[slot]][table.state[slot]] += 1
    for provider, lanes in state.lanes.items():
        require(bool(lanes), "a provider without lanes was kept")
        for kind, lane in lanes.items():
            counts = by_lane.pop((provider, kind), Counter[int]())
            require(not lane.empty, "an empty lane was kept")
            ready = _chained(state, lane.ready, READY)
            require(len(ready) == counts[PENDING] and len(_chained(state, lane.dead, DEAD_LETTERS)) == counts[DEAD],
                    "a lane's lists are not what its clean-ups say")  # fmt: skip
            require(lane.delayed == counts[DELAYED] and lane.claimed == counts[CLAIMED], "a lane is miscounted")
            require(all(reclaims.lane_of(state, slot) is lane for slot in ready), "a clean-up is in the wrong lane")
    require(not by_lane, "a clean-up is in no lane")
    require(all(table.state[slot] > LIVE for slot in state.reasons), "a reason is kept for nothing")


def _check_sets(state: State) -> None:
    table = state.resources
    dying = {slot for slot in used(table) if table.state[slot] == DYING}
    require(dying == set(state.dying), "a resource is dying and nobody sees to it")
    for number, condemned in state.condemned.items():
        for slot in condemned.members[condemned.position :]:
            require(table.state[slot] == LIVE and table.candidate[slot] == number, "a condemned resource changed")


def _check_moments(state: State) -> None:
    table = state.resources
    for slot in used(table):
        at_ms = table.expiry_ms[slot]
        if resources.is_usable(state, slot):
            at_ms = min(at_ms, table.deadline_ms[slot])
        elif table.state[slot] == LIVE:
            continue
        if at_ms < NEVER_MS:
            limit = bucket_of(max(at_ms, state.now_ms))
            require(0 < table.timer[slot] <= limit, "no timer looks at a resource when it is due")
    require(all(table.state[slot] != FREE for slot in state.dying), "a resource that is gone is dying")


def _check_formers(state: State) -> None:
    formers, table = state.formers, state.resources
    require(state.level >= FORMERS or not formers.used, "former tenants are known at a level that knows of none")
    require(formers.used <= table.used, "a slot that was never used had a tenant")
    for slot in formers.column("namespace")[: formers.used].nonzero()[0].tolist():
        require(formers.namespace[slot] - 1 in state.namespaces.by_number, "a former tenant's namespace is gone")
        require(0 < formers.first[slot] <= formers.last[slot], "a former tenant without a generation")
        # Behind a restore's shift the slot may have come around to any generation.
        require(state.generation_shift or formers.last[slot] < table.generation[slot], "a former tenant is none yet")
