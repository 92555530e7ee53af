"""A cycle with a member that refers to very many others: counted over several entries, none of them long."""

from __future__ import annotations

from coordinator.machine import commands as c
from coordinator.machine import garbage
from coordinator.machine.codec import encode_command
from coordinator.machine.collection import Collection, CollectionCounts
from coordinator.machine.invariants import check
from coordinator.machine.limits import MAX_BATCH_RESOURCES, MAX_EDGES_COUNTED
from coordinator.machine.machine import Machine
from coordinator.machine.results import Denied, Result, SetTaken
from tests.service.graphs import finish, live, next_command, pass_buffers, put, state_of
from tests.service.lone import LoneHost

LEAVES = 3 * MAX_EDGES_COUNTED


def _hub(host: LoneHost) -> Collection:
    """A circle of two, of which one refers to many that stay; its only lease is gone."""
    leaves = [f"leaf{number}" for number in range(LEAVES)]
    for start in range(0, LEAVES, MAX_BATCH_RESOURCES):
        host.run(c.PutResources(tuple(leaves[start : start + MAX_BATCH_RESOURCES]), "p", "k", pinned=True))
    put(host, ["hub", "other"], [("hub", "other"), ("other", "hub"), *(("hub", leaf) for leaf in leaves)])
    host.run(c.AcquireLease("hub", "a", 10_000_000))
    pass_buffers(host)
    finish(host, Collection(host.replica.machine, CollectionCounts()))
    host.run(c.ReleaseLease("hub", "a"))
    return Collection(host.replica.machine, CollectionCounts())


def _propose(host: LoneHost, collection: Collection) -> tuple[c.ProposeSet, Result]:
    command = next_command(collection)
    assert isinstance(command, c.ProposeSet)
    (result,) = host.apply(encode_command(command, "default"))
    collection.answered(command, result)
    return command, result


def _until_uncounted(host: LoneHost, collection: Collection) -> None:
    """Both members are in, and edges are left to count."""
    command, result = _propose(host, collection)
    assert command.last
    assert result == SetTaken(2, condemned=False)


def test_its_edges_are_counted_a_bounded_number_at_a_time(monkeypatch) -> None:
    host = LoneHost()
    collection = _hub(host)
    counted: list[int] = []
    count_edge = garbage._count_edge

    def noted(*arguments) -> None:
        counted[-1] += 1
        count_edge(*arguments)

    monkeypatch.setattr(garbage, "_count_edge", noted)
    result: Result = SetTaken(0, condemned=False)
    while not (isinstance(result, SetTaken) and result.condemned):
        counted.append(0)
        _, result = _propose(host, collection)
    assert sum(counted) == LEAVES + 2
    assert max(counted) <= MAX_EDGES_COUNTED
    assert result.members == 2
    finish(host, collection)
    pass_buffers(host)
    assert live(host) == LEAVES
    check(state_of(host))


def test_an_edge_that_goes_in_between_refuses_the_set() -> None:
    host = LoneHost()
    collection = _hub(host)
    _until_uncounted(host, collection)
    host.run(c.DeleteEdge("hub", f"leaf{LEAVES - 1}"))
    _, result = _propose(host, collection)
    assert isinstance(result, Denied) and result.code == "set_refused"
    assert live(host) == LEAVES + 2
    check(state_of(host))


def test_a_lease_that_comes_in_between_refuses_the_set() -> None:
    host = LoneHost()
    collection = _hub(host)
    _until_uncounted(host, collection)
    host.run(c.AcquireLease("other", "b", 10_000))
    _, result = _propose(host, collection)
    assert isinstance(result, Denied) and result.code == "set_refused"
    assert live(host) == LEAVES + 2


def test_a_replica_restored_in_between_goes_on_alike() -> None:
    host = LoneHost()
    collection = _hub(host)
    _until_uncounted(host, collection)
    restored = Machine()
    restored.restore([b"".join(host.replica.machine.freeze().chunks())])
    assert restored.state.proposal == state_of(host).proposal
    command = next_command(collection)
    raw = encode_command(command, "default")
    (result,) = host.apply(raw)
    assert restored.apply(restored.revision + 1, host.now_ms, [raw]) == [result]
    assert restored.digest() == host.replica.machine.digest()
