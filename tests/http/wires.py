"""A connection's wire that the test holds the other end of: what is read at once, and when, is not left to TCP."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.http.served import Served

TURNS = 60
"""Of the event loop, in which everything is done that waits for nothing else."""


class Wire(asyncio.Transport):
    """`answered`: all that was sent to the client so far."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = bytearray()
        self.reading = True
        self.closed = False
        self.aborted = False
        self.unsent = 0
        """Bytes that the client has not taken."""
        self.protocol: Any = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.answered += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading and not self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()


class Caller:
    """A client on such a wire."""

    def __init__(self, found: Served) -> None:
        self.wire = Wire()
        self.wire.protocol = self.connection = found.connection(self.wire)

    def say(self, piece: bytes) -> bool:
        """As one read; False if the node reads nothing now."""
        if self.wire.is_reading():
            self.connection.data_received(piece)
            return True
        return False

    async def settle(self, turns: int = TURNS) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def say_all(self, pieces: list[tuple[bytes, int]]) -> bytes:
        """Each piece, and for so many turns nothing; then all that is answered."""
        for piece, turns in pieces:
            while not self.say(piece) and not self.wire.closed:
                await self.settle(1)
            await self.settle(turns)
        await self.settle()
        # The body of a request may take its time. Then it is aiohttp's, which refuses some before they are complete.
        self.connection.look(asyncio.get_running_loop().time())
        await self.settle()
        return bytes(self.wire.answered)

    def hang_up(self) -> None:
        self.wire.close()
