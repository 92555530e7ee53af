"""The body of a block: a task that may have to be cancelled before the block is over, once, and never after it."""

from __future__ import annotations

import asyncio


class Body:
    """The task in a block, as of its beginning. It is cancelled once at most, and never after it has `left`."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self.cancelled = self.left = False

    def cancel(self) -> None:
        if self._task is not None and not self.cancelled and not self.left:
            self.cancelled = True
            self._task.cancel()

    def cancelled_by_another(self) -> bool:
        """To be asked once, however the block ended: our own cancellation ends here, another's goes on."""
        if self._task is None:
            return False
        left = self._task.uncancel() if self.cancelled else self._task.cancelling()
        return left > self._before
