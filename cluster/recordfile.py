"""A small file that is only ever replaced as a whole: after a crash it is the old one or the new one, never a mixture.

The content is synced before the file gets its name. The checksum covers the name too, so that one such file in the
place of another is noticed. What is in a file is its owner's business.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from cluster.ports import Disk

_CRC_BYTES: Final = 4
_ADVICE: Final = (
    "This node must not go on from it: move the data directory aside and let the node rejoin as a replacement "
    "(holdfast member replace); the other nodes have what was acknowledged."
)


class RecordFileCorrupt(Exception):
    """The file is not as it was written. The message says what to do."""


class RecordFile:
    def __init__(self, disk: Disk, directory: str, name: str) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name
        self._path = f"{directory}/{name}"

    def read(self) -> bytes | None:
        """What was written last; None if nothing ever was."""
        if self._name not in self._disk.names(self._directory):
            return None
        # A process that was killed may have left the name in the page cache only: durable before it counts.
        self._disk.sync_directory(self._directory)
        file = self._disk.open(self._path)
        try:
            content = file.pread(file.size(), 0)
        finally:
            file.close()
        body = content[_CRC_BYTES:]
        if content[:_CRC_BYTES] != self._checksum(body):
            found = f"its {len(content)} bytes do not match their checksum" if content else "it is empty"
            raise RecordFileCorrupt(f"{self._path} is damaged: {found}. {_ADVICE}")
        return body

    def write(self, body: bytes) -> None:
        """Durable on return."""
        temporary = self._path + ".tmp"
        file = self._disk.create(temporary)
        try:
            file.pwrite(self._checksum(body) + body, 0)
            file.fdatasync()
        finally:
            file.close()
        self._disk.rename(temporary, self._path)
        self._disk.sync_directory(self._directory)

    def _checksum(self, body: bytes) -> bytes:
        return crc32(body, crc32(self._name.encode())).to_bytes(_CRC_BYTES, "big")
