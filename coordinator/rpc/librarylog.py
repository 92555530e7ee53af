"""What the gRPC library logs by itself: strangers can cause it, so it is told once in a while and without traces."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cluster.quiet import Quiet

LOGGER = "grpc._cython.cygrpc"
KIND = 16
"""So much of a line's pattern tells its kind; what a stranger sent comes later in it."""


class Bounded(logging.Filter):
    """Of each kind of line the first in a minute. A trace would show the library only: handlers log their own."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._quiet = Quiet(now)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        kept_back = self._quiet.kept_back(type(error).__name__, str(record.msg)[:KIND])
        if kept_back is None:
            return False
        parts = [record.getMessage(), *([repr(error)] if error else [])]
        parts += [f"{kept_back} more like it were not told"] * bool(kept_back)
        record.msg, record.args, record.exc_info, record.exc_text = "; ".join(parts), (), None, None
        return True


def bound_library_log() -> None:
    """For the whole process; once is enough."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(each, Bounded) for each in logger.filters):
        logger.addFilter(Bounded())
