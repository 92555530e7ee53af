"""A HyperLogLog: how many different names were put in, from a few hundred bytes.

What lives here is the sketch alone: registers, union, domination, estimate, bytes. It knows nothing of holders,
tombstones or the network. In the coordinator the estimate is only ever shown; no decision of the machine reads it.

The hash is BLAKE2b with a personalisation of its own, cut to 64 bits: defined by RFC 7693, so the same on every
platform, Python and version, and nobody finds names that fall into one register but by trying. The top p bits choose
the register. The rank is one plus the number of zero bits at the low end of the other 64-p bits (64-p+1 if all are).

The estimate is Ertl's improved raw estimator (O. Ertl, "New cardinality estimation algorithms for HyperLogLog
sketches", 2017): one formula from empty to saturated, with no table of biases and no seam between ranges. Its two
series do what linear counting (small sets) and the large range correction do elsewhere. It is worked out in whole
numbers with 96 binary places, so every node shows the same.
"""

import hashlib
from collections.abc import Iterable
from math import isqrt
from typing import Final, Self

import numpy as np
import numpy.typing as npt

Registers = npt.NDArray[np.uint8]

DEFAULT_PRECISION: Final = 10
LEAST_PRECISION: Final = 4
MOST_PRECISION: Final = 16

_FORMAT: Final = 1
_SPARSE: Final = 0
_DENSE: Final = 1
_HEADER_BYTES: Final = 3
_ENTRY_BYTES: Final = 3
_RANK_BITS: Final = 6
_HASH_BITS: Final = 64
_PERSON: Final = b"holdfast-hll-1"
_POINT: Final = 96
_ONE: Final = 1 << _POINT
_ALPHA: Final = 57_151_038_579_037_013_201_318_837_968
"""1 / (2 ln 2), with the point where `_ONE` has it."""


def hash_of(name: str | bytes) -> int:
    """The 64-bit hash of a name. It is part of the format: a change of it needs a new format number."""
    raw = name.encode() if isinstance(name, str) else name
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8, person=_PERSON).digest(), "big")


def place_of(hashed: int, precision: int) -> tuple[int, int]:
    """The register a hash falls into, and its rank there."""
    width = _HASH_BITS - precision
    low = hashed & ((1 << width) - 1)
    return hashed >> width, (low & -low).bit_length() if low else width + 1


def most_bytes(precision: int = DEFAULT_PRECISION) -> int:
    """The most bytes a sketch of this precision takes."""
    return _HEADER_BYTES + (1 << precision) * _RANK_BITS // 8


def added(raw: bytes, name: str | bytes) -> bytes:
    """The canonical bytes of a sketch with one more name in it.

    In the bytes themselves: an entry of the log may do this thousands of times.
    """
    index, rank = place_of(hash_of(name), raw[1])
    return _raised_dense(raw, index, rank) if raw[2] == _DENSE else _raised_sparse(raw, index, rank)


def _raised_dense(raw: bytes, index: int, rank: int) -> bytes:
    at, shift = divmod(index * _RANK_BITS, 8)
    at, low = at + _HEADER_BYTES, 16 - _RANK_BITS - shift
    # The register lies in these two bytes; the last one of all in one.
    two = raw[at : at + 2]
    pair = int.from_bytes(two.ljust(2, b"\0"), "big")
    before = pair >> low & (1 << _RANK_BITS) - 1
    if before >= rank:
        return raw
    return raw[:at] + (pair + (rank - before << low)).to_bytes(2, "big")[: len(two)] + raw[at + 2 :]


def _raised_sparse(raw: bytes, index: int, rank: int) -> bytes:
    first, last = 0, (len(raw) - _HEADER_BYTES) // _ENTRY_BYTES
    count, key = last, index.to_bytes(2, "big")
    while first < last:
        middle = (first + last) // 2
        at = _HEADER_BYTES + _ENTRY_BYTES * middle
        if raw[at : at + 2] < key:
            first = middle + 1
        else:
            last = middle
    at = _HEADER_BYTES + _ENTRY_BYTES * first
    if raw[at : at + 2] == key:
        return raw if raw[at + 2] >= rank else raw[: at + 2] + bytes((rank,)) + raw[at + _ENTRY_BYTES :]
    if count + 1 < _dense_from(raw[1]):
        return raw[:at] + key + bytes((rank,)) + raw[at:]
    sketch = Sketch.from_bytes(raw)
    sketch._raise(index, rank)
    return sketch.to_bytes()


class Sketch:
    """Registers kept as a small map while few are set, as an array of bytes after that.

    Equality, bytes and estimate depend on the registers alone, never on the order of what was added.
    """

    __slots__ = ("_dense", "_precision", "_sparse")

    def __init__(self, precision: int = DEFAULT_PRECISION) -> None:
        _check_precision(precision)
        self._precision = precision
        self._sparse: dict[int, int] = {}
        self._dense: Registers | None = None

    @property
    def precision(self) -> int:
        return self._precision

    @property
    def is_sparse(self) -> bool:
        return self._dense is None

    def add(self, name: str | bytes) -> bool:
        """Put a name in. True when a register rose."""
        return self.add_hash(hash_of(name))

    def add_hash(self, hashed: int) -> bool:
        """Put in a name whose hash is known."""
        index, rank = place_of(hashed, self._precision)
        return self._raise(index, rank)

    def add_all(self, names: Iterable[str | bytes]) -> None:
        """Put many names in at once."""
        hashes = np.fromiter((hash_of(name) for name in names), dtype=np.uint64)
        self.add_hashes(hashes)

    def add_hashes(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Put in many names whose hashes are known."""
        width = _HASH_BITS - self._precision
        indices = (hashes >> np.uint64(width)).astype(np.intp)
        low = hashes & np.uint64((1 << width) - 1)
        ranks = _trailing_zeros(low) + np.uint8(1)
        ranks[low == 0] = width + 1
        registers = self.registers()
        np.maximum.at(registers, indices, ranks)
        self._take(registers)

    def absorb(self, other: "Sketch") -> bool:
        """Become the union with the other. True when a register rose."""
        self._check_same(other)
        if other._dense is None:
            rose = [self._raise(index, rank) for index, rank in other._sparse.items()]
            return any(rose)
        mine = self.registers()
        if bool(np.all(mine >= other._dense)):
            return False
        self._take(np.maximum(mine, other._dense))
        return True

    def union(self, other: "Sketch") -> "Sketch":
        """A new sketch: as if everything put into either had been put into one."""
        both = self.copy()
        both.absorb(other)
        return both

    def dominates(self, other: "Sketch") -> bool:
        """Whether every register is at least the other's.

        It is so when everything in the other is in this one, but it proves no such thing: a name's register may have
        been raised by another name.
        """
        self._check_same(other)
        if other._dense is None:
            return all(self._rank(index) >= rank for index, rank in other._sparse.items())
        return bool(np.all(self.registers() >= other._dense))

    def estimate(self) -> int:
        """About how many different names were put in; the standard error is 1.04 / sqrt(2^precision)."""
        counts = [0] * (_HASH_BITS - self._precision + 2)
        if self._dense is None:
            counts[0] = (1 << self._precision) - len(self._sparse)
            for rank in self._sparse.values():
                counts[rank] += 1
        else:
            counts = np.bincount(self._dense, minlength=len(counts)).tolist()
        return estimate_of(counts, self._precision)

    def registers(self) -> Registers:
        """A copy of the registers as an array."""
        if self._dense is not None:
            return self._dense.copy()
        registers = np.zeros(1 << self._precision, dtype=np.uint8)
        for index, rank in self._sparse.items():
            registers[index] = rank
        return registers

    def copy(self) -> "Sketch":
        twin = Sketch(self._precision)
        twin._sparse = dict(self._sparse)
        twin._dense = None if self._dense is None else self._dense.copy()
        return twin

    def to_bytes(self) -> bytes:
        """The canonical bytes: equal sketches have equal bytes, however they came about."""
        if self._dense is None:
            entries = sorted(self._sparse.items())
            body = b"".join(index.to_bytes(2, "big") + bytes((rank,)) for index, rank in entries)
            return bytes((_FORMAT, self._precision, _SPARSE)) + body
        bits = np.unpackbits(self._dense.reshape(-1, 1), axis=1)[:, 8 - _RANK_BITS :]
        return bytes((_FORMAT, self._precision, _DENSE)) + np.packbits(bits).tobytes()

    @classmethod
    def from_bytes(cls, raw: bytes, precision: int | None = None) -> Self:
        """The sketch of canonical bytes.

        ValueError for anything that `to_bytes` cannot have written and, with `precision`, for every other precision.
        """
        if len(raw) < _HEADER_BYTES or raw[0] != _FORMAT:
            raise ValueError(f"not a sketch of format {_FORMAT}")
        if precision is not None and raw[1] != precision:
            raise ValueError(f"a sketch of precision {raw[1]} where {precision} was expected")
        sketch = cls(raw[1])
        body = raw[_HEADER_BYTES:]
        if raw[2] == _SPARSE:
            sketch._sparse = _entries(body, sketch._precision)
        elif raw[2] == _DENSE:
            sketch._dense = _unpacked(body, sketch._precision)
        else:
            raise ValueError(f"a sketch has no form {raw[2]}")
        return sketch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Sketch(precision={self._precision}, about {self.estimate()})"

    def _rank(self, index: int) -> int:
        return self._sparse.get(index, 0) if self._dense is None else int(self._dense[index])

    def _raise(self, index: int, rank: int) -> bool:
        if rank <= self._rank(index):
            return False
        if self._dense is None:
            self._sparse[index] = rank
            if len(self._sparse) >= _dense_from(self._precision):
                self._dense, self._sparse = self.registers(), {}
        else:
            self._dense[index] = rank
        return True

    def _take(self, registers: Registers) -> None:
        """Hold these registers, in the form that belongs to them."""
        set_ones = np.flatnonzero(registers)
        if len(set_ones) >= _dense_from(self._precision):
            self._dense, self._sparse = registers, {}
        else:
            self._dense, self._sparse = None, {int(index): int(registers[index]) for index in set_ones}

    def _check_same(self, other: "Sketch") -> None:
        if self._precision != other._precision:
            raise ValueError(f"sketches of precision {self._precision} and {other._precision} do not go together")


def estimate_of(counts: list[int], precision: int) -> int:
    """Ertl's estimate from how many registers have each rank, 0 to 64-precision+1; 2^64 when all are at the top."""
    registers, top = 1 << precision, len(counts) - 1
    if counts[0] == registers:
        return 0
    if counts[top] == registers:
        return 1 << _HASH_BITS
    total = registers * _tau((registers - counts[top]) * _ONE >> precision)
    for rank in range(top - 1, 0, -1):
        total = total + counts[rank] * _ONE >> 1
    total += registers * _sigma(counts[0] * _ONE >> precision)
    estimate = 2 * _ALPHA * registers * registers // total + 1 >> 1
    return min(estimate, 1 << _HASH_BITS)


def _sigma(share: int) -> int:
    """The series for registers that nothing fell into, of their share, which is below one."""
    power, shift, total = share, 0, share
    while power:
        power = power * power >> _POINT
        total += power << shift
        shift += 1
    return total


def _tau(share: int) -> int:
    """The series for registers that reached the top rank, of the share of those that did not."""
    if share in (0, _ONE):
        return 0
    root, shift, total = share, 0, _ONE - share
    while shift < _POINT:
        root = isqrt(root << _POINT)
        shift += 1
        total -= (_ONE - root) ** 2 >> _POINT + shift
    return total // 3


def _trailing_zeros(values: npt.NDArray[np.uint64]) -> Registers:
    left, zeros = values.copy(), np.zeros(len(values), dtype=np.uint8)
    for step in (32, 16, 8, 4, 2, 1):
        none = left & np.uint64((1 << step) - 1) == 0
        zeros[none] += step
        left[none] >>= np.uint64(step)
    return zeros


def _check_precision(precision: int) -> None:
    if not LEAST_PRECISION <= precision <= MOST_PRECISION:
        raise ValueError(f"a sketch's precision is {LEAST_PRECISION} to {MOST_PRECISION}, not {precision}")


def _dense_from(precision: int) -> int:
    """The number of set registers from which the array is the smaller form."""
    return (1 << precision) * _RANK_BITS // 8 // _ENTRY_BYTES


def _entries(body: bytes, precision: int) -> dict[int, int]:
    if len(body) % _ENTRY_BYTES or len(body) // _ENTRY_BYTES >= _dense_from(precision):
        raise ValueError(f"{len(body)} bytes are not the registers of a sparse sketch")
    entries: dict[int, int] = {}
    before = -1
    for at in range(0, len(body), _ENTRY_BYTES):
        index, rank = int.from_bytes(body[at : at + 2], "big"), body[at + 2]
        if not before < index < 1 << precision:
            raise ValueError(f"register {index} is out of order or out of range")
        if not 1 <= rank <= _HASH_BITS - precision + 1:
            raise ValueError(f"register {index} cannot have rank {rank}")
        entries[index] = rank
        before = index
    return entries


def _unpacked(body: bytes, precision: int) -> Registers:
    if len(body) != (1 << precision) * _RANK_BITS // 8:
        raise ValueError(f"{len(body)} bytes are not the registers of a dense sketch of precision {precision}")
    bits = np.unpackbits(np.frombuffer(body, dtype=np.uint8)).reshape(-1, _RANK_BITS)
    padded = np.zeros((len(bits), 8), dtype=np.uint8)
    padded[:, 8 - _RANK_BITS :] = bits
    registers: Registers = np.packbits(padded, axis=1).reshape(-1)
    if int(registers.max()) > _HASH_BITS - precision + 1:
        raise ValueError("a register has a rank that no hash has")
    if np.count_nonzero(registers) < _dense_from(precision):
        raise ValueError("a dense sketch with so few registers set is not canonical")
    return registers
