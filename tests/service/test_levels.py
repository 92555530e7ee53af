"""The leader's proposal of the next level, and each node's snapshot of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from cluster.ports import Committed, Denied, Outcome, Unknown
from coordinator.levels import LOOK_S, Levels
from coordinator.machine.commands import RaiseLevel
from coordinator.machine.levels import LEVEL, OLDEST
from tests.service.lone import LoneHost, service_of
from tests.waiting import until


class Host(LoneHost):
    """`common`: what all members know. `snapshots`: what each snapshot that is asked for ends with."""

    def __init__(self) -> None:
        super().__init__()
        self.common: int | None = None
        self.snapshots: list[Outcome] = []
        self.asked = 0
        self.node.board = SimpleNamespace(common_level=lambda: self.common)
        self.node.compaction = SimpleNamespace(last_index=0)

    async def raise_level(self, command: bytes, timeout: float) -> Outcome:
        return await self.propose(command, timeout)

    async def snapshot(self, timeout: float) -> Outcome:
        self.asked += 1
        outcome = self.snapshots.pop(0)
        if isinstance(outcome, Committed):
            self.node.compaction.last_index = outcome.index
        return outcome


async def no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)


def levels_of(host: Host) -> Levels:
    return Levels(service_of(host), no_pause)


def test_nothing_is_proposed_while_a_member_is_not_heard_or_knows_less() -> None:
    async def scenario() -> None:
        host = Host()
        levels = levels_of(host)
        for common in (None, OLDEST):
            host.common = common
            assert await levels.turn() == LOOK_S
        assert host.proposed == [] and host.asked == 0

    asyncio.run(scenario())


def test_the_level_is_raised_once_and_kept_in_a_snapshot_that_has_it() -> None:
    """One that was under way before does not; one that fails is asked for again."""

    async def scenario() -> None:
        host = Host()
        host.run(RaiseLevel(OLDEST))
        levels = levels_of(host)
        host.common = LEVEL
        host.snapshots = [Committed(1, 0, None), Denied("snapshot_failed", "no space"), Committed(2, 0, None)]
        await levels.turn()
        assert host.replica.level == LEVEL and len(host.proposed) == 1
        assert await levels.turn() == LOOK_S
        await until(lambda: host.node.compaction.last_index == 2, "a snapshot of the level")
        await levels.turn()
        assert len(host.proposed) == 1 and host.asked == 3
        await levels.stop()

    asyncio.run(scenario())


def test_a_follower_keeps_it_too() -> None:
    async def scenario() -> None:
        host = Host()
        levels = levels_of(host)
        host.snapshots = [Committed(1, 0, None)]
        levels.rest()
        assert host.asked == 0
        host.run(RaiseLevel(LEVEL))
        levels.rest()
        await until(lambda: host.asked == 1, "a snapshot")
        levels.rest()
        assert host.snapshots == [] and host.proposed == []
        await levels.stop()

    asyncio.run(scenario())


def test_what_rose_before_this_began_is_kept_unless_the_snapshot_on_disk_has_it() -> None:
    """The node was ended between the rise and its snapshot: what it reads back is one of the old level, and the log."""

    async def scenario() -> None:
        host = Host()
        host.run(RaiseLevel(LEVEL))
        host.snapshots = [Committed(1, 0, None)]
        levels = levels_of(host)
        levels.rest()
        await until(lambda: host.asked == 1, "a snapshot")
        await levels.stop()
        host.replica.restore([b"".join(host.replica.freeze().chunks())])
        again = levels_of(host)
        again.rest()
        await asyncio.sleep(0)
        assert host.asked == 1
        await again.stop()

    asyncio.run(scenario())


def test_the_next_turn_tries_again_what_was_not_committed() -> None:
    async def scenario() -> None:
        host = Host()
        host.common = LEVEL
        levels = levels_of(host)
        host.outcomes = [Denied("not_ready", "handing over"), Unknown("deadline", "no quorum")]
        for _ in range(2):
            assert await levels.turn() == LOOK_S
            assert host.replica.level == OLDEST
        await levels.turn()
        assert host.replica.level == LEVEL and len(host.proposed) == 3
        await levels.stop()

    asyncio.run(scenario())
