"""A real node whose wall clock a test can step: `python -m tests.api.stepped_node FILE node --config …`.

FILE holds seconds. What the process takes for the time of day is off by that much from the moment the file says so, as
after a step by NTP; every other clock runs on. The rest is the command line as it is shipped.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def step_by(file: Path) -> None:
    """Every way Python has to ask for the time of day."""
    real = time.time_ns
    clock_ns = time.clock_gettime_ns

    def time_ns() -> int:
        return real() + int(float(file.read_text()) * 1e9)

    def clock_gettime_ns(clock: int) -> int:
        return time_ns() if clock == time.CLOCK_REALTIME else clock_ns(clock)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
    time.clock_gettime_ns = clock_gettime_ns
    time.clock_gettime = lambda clock: clock_gettime_ns(clock) / 1e9


if __name__ == "__main__":
    step_by(Path(sys.argv[1]))
    # Only now: a module that took the function itself at import gets the one that steps, too.
    from coordinator.cli import main

    sys.exit(main(sys.argv[2:]))
