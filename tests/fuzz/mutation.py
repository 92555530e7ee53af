"""Damage, drawn from a seed: the same seed gives the same inputs on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

LONGEST = 1 << 16
_NUMBERS = tuple(
    number.to_bytes(size, order)
    for size in (1, 2, 4, 8)
    for number in (0, 1, (1 << 8 * size - 1) - 1, 1 << 8 * size - 1, (1 << 8 * size) - 1)
    for order in ("big", "little")
)
"""Lengths and counts at the ends of their ranges."""
_TOKENS = (
    b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\x00\xff\xff\xff",
    b"\x91" * 200, b"\x81\xa1a" * 100, b"\xc0", b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"[" * 500, b'{"a":' * 200,
    b"1e999", b"NaN", b'"\\ud800"', b"null", b"-0", b"9" * 400, b"\xef\xbb\xbf", b"\x00", b'""', b",", b"}", b"]",
)  # fmt: skip
"""What msgpack and JSON find hard."""


def inputs(seeds: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Without end: mostly good bytes with a few places damaged, now and then nothing but noise."""
    rng = random.Random(seed)
    while True:
        kind = rng.randrange(20)
        if kind == 0:
            yield rng.randbytes(rng.randrange(1 << rng.randrange(1, 14)))
            continue
        raw = bytearray(rng.choice(seeds))
        for _ in range(1 << rng.randrange(4)):
            _damage(raw, rng, seeds)
        yield bytes(raw[:LONGEST])


def _damage(raw: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    at = rng.randrange(len(raw) + 1)
    match rng.randrange(8):
        case 0 if at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        case 1 if at < len(raw):
            raw[at] = rng.randrange(256)
        case 2:
            del raw[at:]
        case 3:
            del raw[at : at + rng.randrange(1, 16)]
        case 4:
            number = rng.choice(_NUMBERS)
            raw[at : at + len(number)] = number
        case 5:
            raw[at:at] = rng.choice(_TOKENS)
        case 6:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            raw[at:at] = other[start : start + rng.randrange(64)]
        case 7:
            length = rng.randrange(1, 64)
            raw[at:at] = raw[at : at + length] * rng.randrange(1, 8)
