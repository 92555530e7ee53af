"""One bit of a file that changes while its node is down, and what may be said for a node that goes on all the same.

A node that starts must notice it, unless nothing was said there: the file is not in use any more, or the bit is in
zeros reserved behind the last record, or in bytes that were never synced, which it must take for a torn write.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.disk import SimDisk


class Decay:
    """`dice`: which file, where in it, which bit."""

    def __init__(self, disk: SimDisk, dice: Sequence[float]) -> None:
        self._disk = disk
        paths = [path for path in disk.paths() if disk.content(path) and not path.endswith("/lock")]
        self.path = paths[int(dice[0] * len(paths))]
        content = disk.content(self.path)
        self.offset, self._bit = int(dice[1] * len(content)), int(dice[2] * 8)
        self._inode = disk.inode(self.path)
        self._synced = disk.is_synced(self.path, self.offset)
        self._records = content.rstrip(b"\0")
        """All that the file said, but for zeros at the end of its last record."""
        disk.flip(self.path, self.offset, self._bit)
        self._damaged = disk.byte(self.path, self.offset)

    def says_nothing(self) -> bool:
        """After a start that did not mind."""
        if self._disk.inode(self.path) is not self._inode or not self._synced:
            return True
        if self.offset < len(self._records):
            return False
        return self._disk.content(self.path).startswith(self._records)

    def undo(self) -> None:
        """The bit as it was, unless the node has written there since."""
        if self._disk.byte(self.path, self.offset) == self._damaged:
            self._disk.flip(self.path, self.offset, self._bit)

    def __str__(self) -> str:
        return f"bit {self._bit} of byte {self.offset} of {self.path}"
