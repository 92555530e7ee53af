"""Memory, descriptors and queues stay under their caps (I18): looked at in the running processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.checkers.violation import Violation

RSS_BYTES = 512 << 20
DESCRIPTORS = 512
PAGE_BYTES = 4_096


@dataclass
class Bounded:
    rss_bytes: int = RSS_BYTES
    descriptors: int = DESCRIPTORS
    most: dict[str, int] = field(default_factory=dict)
    """The greatest of each that was seen."""

    def look(self, name: str, pid: int, proc: Path = Path("/proc")) -> None:
        """A process that has just ended is not looked at."""
        try:
            resident = int((proc / str(pid) / "statm").read_text().split()[1]) * PAGE_BYTES
            open_now = len(list((proc / str(pid) / "fd").iterdir()))
        except (OSError, IndexError):
            return
        self.check(name, "resident bytes", resident, self.rss_bytes)
        self.check(name, "descriptors", open_now, self.descriptors)

    def check(self, name: str, what: str, found: int, cap: int) -> None:
        self.most[what] = max(self.most.get(what, 0), found)
        if found > cap:
            raise Violation("bounded", f"{name} has {found} {what}, more than {cap} (I18)")
