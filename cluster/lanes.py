"""What waits to be proposed, in lanes that take turns: a crowd in one of them keeps nobody in another waiting.

What a lane stands for is not known here. Each in turn may send as much as it has saved up, a little more with every
turn (deficit round robin), so a lane of large commands gets no more than one of small ones. A lane may hold as much as
is still free: one that floods gets half of the queue, two a third each, and there is always room for another.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from cluster.options import KIB, Limits
from cluster.ports import Clock

TURN = 16
"""What a lane may send in one turn, in units of cost."""
MAX_COST = 1 << 16
"""What anything counts at most, whatever its sender says: its lane saves up for it turn by turn."""
SHARED = 4
"""An entry costs so many times less while several lanes are in use: nobody waits long for the others' part of it."""
SHARED_FOR = 256
"""So many turns of one lane after the last one of another, it counts as alone."""
MUCH_COMMANDS, MUCH_BYTES = 32, 32 * KIB
"""With so many commands or bytes, an entry costs little more than what is in it."""
REST = 4
"""So many times as long as its last entry took, background work pauses, unless its lane says more."""
REST_MAX_S = 1.0
"""But no longer: an entry that took longer was held up by a stop of the host or of a disk, not by its work."""


class Lane(NamedTuple):
    """`background`: work that can wait while others use the log; `rest`: how long it then pauses (`Background`)."""

    name: str = ""
    background: bool = False
    rest: int = REST


FRONT = Lane()


def cost_of(size: int, cost: int) -> int:
    """Of commands: what their sender says that applying them costs, but a KiB costs one at least."""
    return min(max(1, cost, size // KIB), MAX_COST)


class Waiting(Protocol):
    """Commands that enter the log together."""

    @property
    def lane(self) -> Lane: ...

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def cost(self) -> int: ...

    @property
    def over(self) -> bool:
        """Nobody waits for it any more: it need not be proposed."""


T = TypeVar("T", bound=Waiting)


@dataclass(slots=True)
class _Line(Generic[T]):
    """What waits in one lane. Forgotten when it is empty, unless it is held."""

    waiting: deque[T] = field(default_factory=deque)
    saved: int = 0
    commands: int = 0
    size: int = 0
    held: bool = False


class Lanes(Generic[T]):
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lines: dict[Lane, _Line[T]] = {}
        self._turns: dict[bool, OrderedDict[Lane, _Line[T]]] = {False: OrderedDict(), True: OrderedDict()}
        """Whose turn is next, in the background and not: lanes in which something waits and that are not held."""
        self.commands = self._size = 0
        self._last: Lane | None = None
        self._alone_for = SHARED_FOR
        """Turns of the last lane since there was one of another."""

    def __iter__(self) -> Iterator[T]:
        """All that wait. A copy: whoever is told of one may add another."""
        return iter([item for line in self._lines.values() for item in line.waiting])

    def ready(self, *, background: bool) -> bool:
        return bool(self._turns[background])

    @property
    def entry_cost(self) -> int:
        """What the next entry may cost."""
        whole = self._limits.entry_cost
        return whole if self._alone_for >= SHARED_FOR else max(1, whole // SHARED)

    @property
    def has_much(self) -> bool:
        return self.commands >= MUCH_COMMANDS or self._size >= MUCH_BYTES

    # --- in -------------------------------------------------------------------------------------------------

    def has_room(self, lane: Lane, commands: int, size: int) -> bool:
        """While a lane holds less than what is free."""
        line = self._lines.get(lane)
        held, held_size = (line.commands, line.size) if line is not None else (0, 0)
        return (
            held + self.commands + commands <= self._limits.queue_commands
            and held_size + self._size + size <= self._limits.queue_bytes
        )

    def add(self, item: T) -> None:
        self._line(item.lane).waiting.append(item)
        self._count(item, 1)

    def put_back(self, item: T) -> None:
        """Before all others of its lane."""
        self._line(item.lane).waiting.appendleft(item)
        self._count(item, 1)

    def _line(self, lane: Lane) -> _Line[T]:
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = _Line()
        if not line.held:
            self._turns[lane.background].setdefault(lane, line)
        return line

    def _count(self, item: T, sign: int) -> None:
        line = self._lines[item.lane]
        line.commands += sign * item.count
        line.size += sign * item.size
        self.commands += sign * item.count
        self._size += sign * item.size

    # --- out ------------------------------------------------------------------------------------------------

    def take(self, room: int, cost: int, *, background: bool, first: bool) -> list[T]:
        """In turn what fits into `room` bytes, until it costs `cost`; at least one if it is the `first` of an entry."""
        taken: list[T] = []
        turns = self._turns[background]
        while turns and cost > 0:
            lane, line = next(iter(turns.items()))
            self._note(lane)
            line.saved += TURN
            while line.waiting and cost > 0:
                item = line.waiting[0]
                if item.over:
                    self._pop(line)
                elif item.size > room and (taken or not first):
                    line.saved -= TURN
                    return taken
                elif item.cost > line.saved:
                    break
                else:
                    self._pop(line)
                    line.saved -= item.cost
                    room, cost = room - item.size, cost - item.cost
                    taken.append(item)
            turns.move_to_end(lane)
            self._forget_if_empty(lane, line)
        return taken

    def _note(self, lane: Lane) -> None:
        """One more turn. What is in the background, or the cluster's own, makes no lane a shared one."""
        if lane.background or lane == FRONT:
            return
        self._alone_for = self._alone_for + 1 if lane == self._last else 0
        self._last = lane

    def _pop(self, line: _Line[T]) -> None:
        self._count(line.waiting[0], -1)
        line.waiting.popleft()

    def drop_over(self) -> None:
        """Gives the room back of those at the head of their lane for which nobody waits."""
        for lane, line in list(self._lines.items()):
            while line.waiting and line.waiting[0].over:
                self._pop(line)
            self._forget_if_empty(lane, line)

    def withdraw(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Takes out all that are."""
        gone: list[T] = []
        for lane, line in list(self._lines.items()):
            found = [item for item in line.waiting if unwanted(item)]
            for item in found:
                self._count(item, -1)
            if found:
                line.waiting = deque(item for item in line.waiting if not unwanted(item))
                gone += found
                self._forget_if_empty(lane, line)
        return gone

    def _forget_if_empty(self, lane: Lane, line: _Line[T]) -> None:
        if not line.waiting:
            self._turns[lane.background].pop(lane, None)
            if not line.held:
                del self._lines[lane]

    # --- holding --------------------------------------------------------------------------------------------

    def hold(self, lane: Lane) -> None:
        """It gives nothing until it is let go."""
        line = self._lines.setdefault(lane, _Line())
        line.held = True
        self._turns[lane.background].pop(lane, None)

    def let_go(self, lane: Lane) -> None:
        line = self._lines.get(lane)
        if line is not None and line.held:
            line.held = False
            self._turns[lane.background][lane] = line
            self._forget_if_empty(lane, line)


class Background:
    """When work in the background may enter the log: one entry of it at a time, then a pause if others use the log.

    The pause is `rest` times as long as that entry took, from here to being applied, by the lane that says most: when
    everything is slow it is longer, and most of the log's time is the others'. They also see to it that the end of the
    pause is noticed. After it, background work goes with the next entry of theirs, which is written anyway; for one of
    its own it waits as long again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Another leads, or this node anew."""
        self._entry: int | None = None
        self._rest = REST
        self._began = self._until = self._pause = 0.0
        self._others = False
        """Something that is not in the background entered the log since the last pause began."""

    @property
    def under_way(self) -> bool:
        """An entry with background work has not been applied yet."""
        return self._entry is not None

    def may_go(self, *, alone: bool = False) -> bool:
        until = self._until + (self._pause if alone and self._others else 0.0)
        return not self.under_way and self._clock.now() >= until

    def appended(self, index: int, lanes: set[Lane]) -> None:
        """An entry with background work, with other work, or with both."""
        rests = [lane.rest for lane in lanes if lane.background]
        self._others = self._others or len(rests) < len(lanes)
        if rests:
            self._entry, self._began, self._rest = index, self._clock.now(), max(rests)

    def applied(self, index: int) -> None:
        if self._entry is None or index < self._entry:
            return
        now = self._clock.now()
        self._pause = min(self._rest * (now - self._began), REST_MAX_S) if self._others else 0.0
        self._entry, self._until, self._others = None, now + self._pause, False
