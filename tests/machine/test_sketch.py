"""The HyperLogLog: its error against theory, union as addition, canonical bytes, refusal of what is no sketch."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine.sketch import Sketch, added, estimate_of, hash_of, most_bytes, place_of

WRITTEN = [11267064705946653142, 16031451189930397885, 1338300614686627644]
WRITTEN_SKETCH = "010a00004a03037901"

precisions = st.integers(min_value=4, max_value=16)
names = st.lists(st.text(max_size=12), max_size=200)


def filled(given_names: list[str], precision: int = 10) -> Sketch:
    sketch = Sketch(precision)
    for name in given_names:
        sketch.add(name)
    return sketch


def test_the_hash_is_written_down() -> None:
    """The hash is part of the format on disk and between nodes; these numbers may never change."""
    assert hash_of("edge-7") == hash_of(b"edge-7")
    assert [hash_of(name) for name in ("", "edge-7", "größe")] == WRITTEN
    assert filled(["edge-7", "größe"]).to_bytes().hex() == WRITTEN_SKETCH


@pytest.mark.parametrize(
    ("precision", "magnitude"), [(10, most) for most in range(7)] + [(4, 3), (7, 4), (14, 5), (16, 5)]
)
def test_the_error_is_within_theory(precision: int, magnitude: int) -> None:
    """Every trial within five standard errors, and their mean within four standard errors of a mean: no bias."""
    trials = 40 if magnitude < 6 else 12
    count = 10**magnitude
    deviation = 1.04 / math.sqrt(1 << precision)
    errors = []
    for trial in range(trials):
        generator = np.random.default_rng(1000 * magnitude + trial)
        hashes = generator.integers(0, 1 << 64, size=count, dtype=np.uint64)
        sketch = Sketch(precision)
        sketch.add_hashes(hashes)
        errors.append((sketch.estimate() - count) / count)
    rounding = 0.5 / count
    assert max(abs(error) for error in errors) <= 5 * deviation + rounding
    assert abs(sum(errors) / trials) <= 4 * deviation / math.sqrt(trials) + rounding


def test_the_error_holds_for_names_and_our_hash() -> None:
    """Names as people give them: a prefix and a number. The hash must spread them like chance does."""
    deviation = 1.04 / math.sqrt(1024)
    for count in (1, 10, 100, 1_000, 10_000, 100_000):
        for family in ("edge-", "node/", "holder."):
            sketch = Sketch()
            sketch.add_all(f"{family}{number}" for number in range(count))
            assert abs(sketch.estimate() - count) <= 5 * deviation * count + 0.5


def test_small_sets_are_counted_nearly_exactly() -> None:
    for count in range(20):
        estimate = filled([f"holder-{number}" for number in range(count)]).estimate()
        assert abs(estimate - count) <= 1
    assert Sketch().estimate() == 0


def test_saturated_registers_have_a_finite_estimate() -> None:
    for precision in (4, 10, 16):
        counts = [0] * (64 - precision + 2)
        counts[-1] = 1 << precision
        assert estimate_of(counts, precision) == 1 << 64
        counts[-1], counts[1] = (1 << precision) - 1, 1
        assert 0 < estimate_of(counts, precision) <= 1 << 64


@given(precisions, names, names)
def test_union_is_adding_both(precision: int, ours: list[str], theirs: list[str]) -> None:
    left, right = filled(ours, precision), filled(theirs, precision)
    both = filled(ours + theirs, precision)
    assert left.union(right) == both == right.union(left)
    assert both.to_bytes() == left.union(right).to_bytes()
    assert both.dominates(left)
    assert both.dominates(right)
    assert left == filled(ours, precision)


@given(precisions, names, st.randoms())
def test_order_and_repetition_do_not_show(precision: int, given_names: list[str], chance: random.Random) -> None:
    shuffled = given_names * 2
    chance.shuffle(shuffled)
    at_once = Sketch(precision)
    at_once.add_all(shuffled)
    assert filled(given_names, precision).to_bytes() == filled(shuffled, precision).to_bytes() == at_once.to_bytes()


@given(precisions, names)
def test_bytes_with_one_more_name(precision: int, given_names: list[str]) -> None:
    raw = Sketch(precision).to_bytes()
    for name in given_names:
        raw = added(raw, name)
    assert raw == filled(given_names, precision).to_bytes()


@pytest.mark.parametrize("precision", [4, 10, 16])
def test_bytes_with_one_more_name_up_to_many(precision: int) -> None:
    """Through both forms, and over registers that rise more than once."""
    raw, sketch = Sketch(precision).to_bytes(), Sketch(precision)
    for at in range(1 << min(precision + 1, 12)):
        raw = added(raw, f"n{at}")
        sketch.add(f"n{at}")
        if at % 29 == 0:
            assert raw == sketch.to_bytes()
    assert raw == sketch.to_bytes() and sketch.is_sparse == (precision == 16)


@given(precisions, names, names)
def test_dominates_says_what_the_registers_say(precision: int, ours: list[str], theirs: list[str]) -> None:
    left, right = filled(ours, precision), filled(theirs, precision)
    assert left.dominates(right) == bool(np.all(left.registers() >= right.registers()))
    assert left.absorb(right) == (left != filled(ours, precision))
    assert left.dominates(right)


@given(precisions, names)
def test_bytes_come_back_as_the_same_sketch(precision: int, given_names: list[str]) -> None:
    sketch = filled(given_names, precision)
    raw = sketch.to_bytes()
    again = Sketch.from_bytes(raw, precision)
    assert again == sketch
    assert again.to_bytes() == raw
    assert again.estimate() == sketch.estimate()
    assert again.is_sparse == sketch.is_sparse
    assert len(raw) <= most_bytes(precision)


@given(st.binary(max_size=60), st.integers(min_value=0, max_value=20), st.integers(min_value=0, max_value=3))
def test_bytes_are_refused_or_canonical(body: bytes, precision: int, form: int) -> None:
    raw = bytes((1, precision, form)) + body
    try:
        sketch = Sketch.from_bytes(raw)
    except ValueError:
        return
    assert sketch.to_bytes() == raw


@settings(max_examples=200)
@given(names, st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_changed_byte_is_refused_or_another_canonical_sketch(given_names: list[str], at: int, flip: int) -> None:
    raw = bytearray(filled(given_names, 4).to_bytes())
    raw[at % len(raw)] ^= flip
    try:
        sketch = Sketch.from_bytes(bytes(raw))
    except ValueError:
        return
    assert sketch.to_bytes() == bytes(raw)


def test_sparse_turns_dense_where_the_array_is_smaller() -> None:
    sketch = Sketch()
    sizes = []
    for number in range(2_000):
        sketch.add(f"holder-{number}")
        sizes.append(len(sketch.to_bytes()))
        rising = Sketch.from_bytes(sketch.to_bytes())
        assert rising.is_sparse == sketch.is_sparse
    assert not sketch.is_sparse
    assert max(sizes) == most_bytes() == 771
    assert np.count_nonzero(sketch.registers()) > 256


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01\x0a",
        b"\x02\x0a\x00",
        b"\x01\x03\x00",
        b"\x01\x11\x00",
        b"\x01\x0a\x02",
        b"\x01\x0a\x00\x00\x01",
        b"\x01\x0a\x00\x00\x01\x00",
        b"\x01\x0a\x00\x00\x01\x38",
        b"\x01\x0a\x00\x04\x00\x01",
        b"\x01\x0a\x00\x00\x01\x01\x00\x01\x01",
        b"\x01\x0a\x00\x00\x02\x01\x00\x01\x01",
        b"\x01\x0a\x01" + b"\x00" * 768,
        b"\x01\x0a\x01" + b"\xff" * 768,
        b"\x01\x0a\x01" + b"\x04" * 769,
    ],
)
def test_malformed_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"sketch|register|form|rank"):
        Sketch.from_bytes(raw)


def test_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision 4 where 10"):
        Sketch.from_bytes(Sketch(4).to_bytes(), 10)
    with pytest.raises(ValueError, match="do not go together"):
        Sketch(4).union(Sketch(5))
    with pytest.raises(ValueError, match="do not go together"):
        Sketch(4).dominates(Sketch(5))
    for precision in (3, 17):
        with pytest.raises(ValueError, match="precision is 4 to 16"):
            Sketch(precision)


def test_ranks_at_the_ends() -> None:
    assert place_of(0, 10) == (0, 55)
    assert place_of((1 << 64) - 1, 10) == (1023, 1)
    assert place_of(1 << 53, 10) == (0, 54)
    sketch = Sketch()
    sketch.add_hashes(np.array([0, (1 << 64) - 1, 1 << 53], dtype=np.uint64))
    one_by_one = Sketch()
    for hashed in (0, (1 << 64) - 1, 1 << 53):
        one_by_one.add_hash(hashed)
    assert sketch == one_by_one
