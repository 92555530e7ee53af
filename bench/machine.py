"""What a figure was measured on: written into every result, so that nobody compares figures of two machines."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SYNCS = 200


def describe() -> dict[str, Any]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown",
    )
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": [round(value, 2) for value in os.getloadavg()],
        "utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def sync_ms(directory: Path) -> dict[str, float]:
    """What the disk under `directory` takes to sync 8 KiB that were appended."""
    taken, content = [], bytes(8 << 10)
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(content)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1e3)
    taken.sort()
    return {"p50": round(percentile(taken, 0.5), 3), "p99": round(percentile(taken, 0.99), 3)}


def loopback_bytes() -> int:
    """All that went over the loopback interface so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    return 0


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of live processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pids: list[int]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def percentile(sorted_values: Sequence[float], fraction: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * fraction))]
