"""What the machine can be told about holders of copies, and by them."""

from __future__ import annotations

from coordinator.machine.values import value


@value(frozen=True, slots=True)
class RegisterCopy:
    """The holder is about to have a copy of the resource. An unknown holder joins by it, and is given a token.

    `session_id`: the holder is removed when that session ends. None leaves it as it is: for a new holder, none.
    """

    resource_id: str
    holder_id: str
    session_id: int | None = None
    holder_token: int | None = None


@value(frozen=True, slots=True)
class VerifyCopies:
    """From a holder that was removed and is back: what it has, in pages. `incarnations`: packed little-endian u64.

    The first page has no token; its answer has the one that the next pages show. Who has nothing left sends one empty
    page.
    """

    holder_id: str
    resource_ids: tuple[str, ...]
    incarnations: bytes
    last: bool
    session_id: int | None = None
    holder_token: int | None = None


@value(frozen=True, slots=True)
class AckTombstones:
    """The holder has no copy any more of anything that died up to `revision`."""

    holder_id: str
    holder_token: int
    revision: int


@value(frozen=True, slots=True)
class RemoveHolder:
    """By an administrator: nothing waits for it any more. With its token: by itself, it has dropped every copy."""

    holder_id: str
    holder_token: int | None = None


TombstoneCommand = RegisterCopy | VerifyCopies | AckTombstones | RemoveHolder
