"""Bytes by slot, in pages that a frozen state shares: a page is copied when it first changes after a freeze."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Page = npt.NDArray[np.object_]
"""Not a list: the garbage collector does not walk it."""

PAGE_SHIFT = 10
PAGE_SLOTS = 1 << PAGE_SHIFT
PAGE_MASK = PAGE_SLOTS - 1
PIECE_BYTES = 1 << 20


class Pages:
    def __init__(self) -> None:
        self.size_bytes = 0
        """Of all there is."""
        self._pages: list[Page] = []
        self._frozen: list[int] = []
        """For each page, how many freezes there had been when it was made or last copied."""
        self._freezes = 0

    def get(self, slot: int) -> bytes:
        """Of a slot that nothing was put in: nothing."""
        page = slot >> PAGE_SHIFT
        found: bytes | None = self._pages[page][slot & PAGE_MASK] if page < len(self._pages) else None
        return found or b""

    def put(self, slot: int, value: bytes) -> None:
        """In the place of what was there. Nothing is kept of nothing."""
        before = len(self.get(slot))
        if not before and not value:
            return
        page = slot >> PAGE_SHIFT
        while page >= len(self._pages):
            self._pages.append(np.empty(PAGE_SLOTS, dtype=np.object_))
            self._frozen.append(self._freezes)
        if self._frozen[page] != self._freezes:
            self._pages[page] = self._pages[page].copy()
            self._frozen[page] = self._freezes
        self._pages[page][slot & PAGE_MASK] = value or None
        self.size_bytes += len(value) - before

    def freeze(self) -> list[Page]:
        """The pages as they are now and stay."""
        self._freezes += 1
        return self._pages.copy()


def pieces(pages: list[Page]) -> Iterator[list[tuple[int, bytes]]]:
    """Slots and what they have, in order, about PIECE_BYTES at a time."""
    piece: list[tuple[int, bytes]] = []
    size = 0
    for number, page in enumerate(pages):
        for place in np.flatnonzero(page != None).tolist():  # noqa: E711 (each element is compared)
            value = page[place]
            piece.append((number << PAGE_SHIFT | place, value))
            size += 16 + len(value)
            if size >= PIECE_BYTES:
                yield piece
                piece, size = [], 0
    if piece:
        yield piece
