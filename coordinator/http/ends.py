"""Reading what ends by time: whether it is over is for the log to say, and the log is asked when the clock says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from cluster.ports import Committed
from coordinator.http.operations import Call
from coordinator.lanes import PULSE
from coordinator.machine.commands import Sweep
from coordinator.service import ReadPoint


class Ending(Protocol):
    @property
    def overdue(self) -> bool:
        """Past its end by the clock, and not by the log."""


N = TypeVar("N")
T = TypeVar("T", bound=Ending | None)


async def read_page(
    call: Call, look: Callable[[int], tuple[Sequence[T], N]]
) -> tuple[tuple[Sequence[T], N], ReadPoint]:
    """What `look` finds, at the moment that it is given, and where what follows begins.

    The clocks of two nodes differ by what is on the wire, so what one tells by its clock the next may deny. Where one
    finds something past its end, an entry is written first that says so to all of them. If nobody takes that in the
    time there is, it is told as it was found: active, with no time left.
    """
    service = call.service
    point = await call.read()
    page = look(point.now_ms)
    if call.query["consistency"] != "linearizable" or not any(each is not None and each.overdue for each in page[0]):
        return page, point
    if isinstance(await service.propose("default", Sweep(PULSE), None, call.left_s), Committed):
        # Applied here, with all that was committed before it: no need to ask again how far to read.
        point = ReadPoint(service.revision, service.now_ms(), 0)
        page = look(point.now_ms)
    return page, point


async def read_ending(call: Call, look: Callable[[int], Sequence[T]]) -> tuple[Sequence[T], ReadPoint]:
    """The same of what has no page after it."""
    (found, _), point = await read_page(call, lambda now_ms: (look(now_ms), None))
    return found, point
