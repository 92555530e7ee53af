"""Memory, descriptors and queues stay under their caps (I18): looked at in the running processes.

Caps that no load of a test can reach would say nothing. These follow from the load: a client has one request under way,
so there are never more commands or waiters than clients (times the nodes on which a request that was given up may still
be under way), nor more connections than each client and each peer has. Memory may grow by what the product keeps on
purpose (`KEPT_BYTES`, the sum of its own caps) above what a process has when it is first seen, and no further.
`refused_in_time` has the rest of I18: overload is refused before its deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.checkers.violation import Violation

KEPT_BYTES = 192 << 20
"""Remembered requests and events, the log in memory, buffers of a snapshot being taken or received."""
RSS_BYTES = 384 << 20
PAGE_BYTES = 4_096
OWN_DESCRIPTORS = 64
"""Files, the event loop's, sockets of peers and of whoever watches the run."""
OWN_COMMANDS = 64
"""Sweeps and other proposals of a node itself."""


@dataclass
class Bounded:
    rss_bytes: int = RSS_BYTES
    grown_bytes: int = KEPT_BYTES
    descriptors: int = 512
    commands: int = 1_000
    most: dict[str, int] = field(default_factory=dict)
    """The greatest of each that was seen."""
    _first: dict[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def of_clients(cls, clients: int) -> Bounded:
        """A client has one connection to a node, and a second one while the first is being closed."""
        return cls(descriptors=OWN_DESCRIPTORS + 2 * clients, commands=OWN_COMMANDS + 5 * clients)

    def look(self, name: str, pid: int, proc: Path = Path("/proc")) -> None:
        """A process that has just ended is not looked at."""
        try:
            resident = int((proc / str(pid) / "statm").read_text().split()[1]) * PAGE_BYTES
            open_now = len(list((proc / str(pid) / "fd").iterdir()))
        except (OSError, IndexError):
            return
        grown = resident - self._first.setdefault((name, pid), resident)
        self.check(name, "resident bytes", resident, self.rss_bytes)
        self.check(name, "resident bytes more than at first", grown, self.grown_bytes)
        self.check(name, "descriptors", open_now, self.descriptors)

    def queues(self, name: str, telemetry: Mapping[str, Any]) -> None:
        """What /api/v1/telemetry says of one moment."""
        self.check(name, "commands in the queue", telemetry["queue_depth"], self.commands)
        self.check(name, "waiters", telemetry["waiters"], self.commands)

    def check(self, name: str, what: str, found: int, cap: int) -> None:
        self.most[what] = max(self.most.get(what, 0), found)
        if found > cap:
            raise Violation("bounded", f"{name} has {found} {what}, more than {cap} (I18)")
