"""What the machine answers holders of copies."""

from __future__ import annotations

from coordinator.machine.values import value


@value(frozen=True, slots=True)
class CopyRegistered:
    """`incarnation`: which life of the resource this is a copy of. `joined`: the holder was not known before."""

    holder_token: int
    watermark: int
    incarnation: int
    joined: bool


@value(frozen=True, slots=True)
class CopiesVerified:
    """`keep`: a byte for each copy of the page, 1 to keep it and 0 to drop it. `verified`: that was the last page."""

    holder_token: int
    watermark: int
    keep: bytes
    verified: bool


@value(frozen=True, slots=True)
class TombstonesAcked:
    watermark: int
    advanced: bool


@value(frozen=True, slots=True)
class HolderRemoved:
    watermark: int


TombstoneResult = CopyRegistered | CopiesVerified | TombstonesAcked | HolderRemoved
