"""What befalls a follower under writes, on one fleet: it is stopped past the lease, killed in the middle of installing
a snapshot, and removed without having heard of it."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from tests.processes.fleet import Fleet, wait_for
from tests.processes.writers import Load
from tests.reference.register import command

ELECTION_MAX_S = 1.5
LIMITS = {
    "segment_bytes": 1 << 18, "log_entries": 200, "log_bytes": 1 << 20, "retain_bytes": 0,
    "snapshot_chunk_bytes": 1 << 13,
}  # fmt: skip
"""Small pieces: a snapshot is on its way for long enough to be met there."""
BALLAST = b"b" * (1 << 18)
TRIES = 5
"""To meet it there: on a machine with nothing else to do it may be over before anybody looks."""


def test_followers_that_are_stopped_killed_and_removed(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, timing={"election_min": 0.75, "election_max": ELECTION_MAX_S}, limits=LIMITS)
    try:
        fleet.run(_scenario)
    finally:
        fleet.close()


async def _scenario(fleet: Fleet) -> None:
    fleet.start()
    leader = await fleet.leader()
    await fleet.converged()
    first, second = (name for name in fleet.names if name != leader)
    await _stopped_past_the_lease(fleet, first)
    load = Load(fleet, writers=3, seed=31)
    load.start()
    await _more(load, 50)
    await _killed_while_it_installs(fleet, load, second)
    await load.finish()
    await fleet.converged()
    await load.check(second)
    await _removed_unheard(fleet, await fleet.leader())


async def _more(load: Load, count: int) -> None:
    target = load.acknowledged() + count

    async def reached() -> bool:
        return load.acknowledged() >= target

    await wait_for(reached, 90, f"{count} more writes")


async def _passed(seconds: float) -> None:
    end = time.monotonic() + seconds

    async def over() -> bool:
        return time.monotonic() > end

    await wait_for(over, seconds + 90, "end of that time")


async def _term(fleet: Fleet, name: str) -> int:
    status = await wait_for(lambda: fleet.status(name), 90, f"answer of {name}")
    return int(status[1])


async def _stopped_past_the_lease(fleet: Fleet, name: str) -> None:
    """The appends of that time wait in its sockets; it takes them in without a campaign, and answers nothing stale."""
    leader = await fleet.leader(without=name)
    term = await _term(fleet, leader)
    fleet.signal(name, signal.SIGSTOP)
    try:
        for number in range(200):
            answer = await fleet.clients[leader].call("propose", command("put", "k", number), 5.0)
            assert answer[0] == "committed", answer
        await _passed(1.2 * ELECTION_MAX_S)
        reads = [asyncio.create_task(fleet.clients[name].call("read", "k", 5.0)) for _ in range(20)]
        await asyncio.sleep(0)  # they are the first thing it sees when it goes on
    finally:
        fleet.signal(name, signal.SIGCONT)
    for answer in await asyncio.gather(*reads):
        assert answer[0] == "denied" or answer[1] == 199, f"stale read: {answer}"
    assert await _term(fleet, name) == term, "the follower that went on disturbed its leader"


async def _killed_while_it_installs(fleet: Fleet, load: Load, name: str) -> None:
    snapshots = fleet.directory / name / "snapshots"
    for _ in range(TRIES):
        had = await _given_a_snapshot(fleet, name, snapshots)
        if had is not None:
            break
    assert had is not None, "it was never met while it installed"
    await _more(load, 20)
    fleet.start(name)

    async def installed() -> bool:
        return _finished(snapshots) != had

    await wait_for(installed, 90, "the snapshot to be installed")


async def _given_a_snapshot(fleet: Fleet, name: str, snapshots: Path) -> set[str] | None:
    """Killed in the middle of it, and what it had before; None if it had installed it already."""
    fleet.kill(name)
    leader = await fleet.leader()
    for number in range(8):
        answer = await fleet.clients[leader].call("propose", command("put", f"ballast/{number}", BALLAST), 10.0)
        assert answer[0] == "committed", answer
    await fleet.clients[leader].call("snapshot")
    had = _finished(snapshots)
    fleet.start(name)

    async def arriving() -> bool:
        return _finished(snapshots) != had or _received(snapshots) > 100_000

    await wait_for(arriving, 90, "a part of a snapshot")
    fleet.kill(name)
    return had if _finished(snapshots) == had and _received(snapshots) else None


def _received(snapshots: Path) -> int:
    """How many bytes of one that is not complete yet."""
    try:
        return max((path.stat().st_size for path in snapshots.glob("*.received.tmp")), default=0)
    except FileNotFoundError:  # it has just been renamed
        return 0


def _finished(snapshots: Path) -> set[str]:
    return {path.name for path in snapshots.iterdir() if path.suffix != ".tmp"}


async def _removed_unheard(fleet: Fleet, leader: str) -> None:
    """It is stopped while it is removed, so that it takes itself for a voter whose leader is gone when it goes on."""
    name = next(name for name in fleet.names if name != leader)
    fleet.signal(name, signal.SIGSTOP)
    try:
        answer = await fleet.clients[leader].call("remove", name)
        assert answer[0] == "committed", answer
        await _passed(2 * ELECTION_MAX_S)  # for that long the leader would have told it
    finally:
        fleet.signal(name, signal.SIGCONT)
    term = await _term(fleet, leader)
    await fleet.logged(name, "was removed from the cluster")  # it is told why nobody listens to it
    await _passed(1.2 * ELECTION_MAX_S)
    assert await _term(fleet, leader) == term, "the removed node made the others vote"
    written = await fleet.clients[leader].call("propose", command("put", "after", 1), 5.0)
    assert written[0] == "committed", written
    assert (await _term(fleet, name)) <= term, "it campaigned"
