"""A slice of the fuzzing in every test run: each decoder ends every input with what it reads or a plain refusal."""

from __future__ import annotations

import pytest

from tests.fuzz.decoders import DECODERS, Decoder
from tests.fuzz.mutation import inputs
from tests.fuzz.running import Broken, fuzz

SLICE = 1 << 20
SLOWEST_MS = 500
GROWTH_KIB = 64 << 10
"""A process of the tests has about 100 MiB: less than as much again."""


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_damaged_bytes_are_refused(decoder: Decoder) -> None:
    outcome = fuzz(decoder, SLICE)
    assert outcome.refused or not decoder.refusals
    assert outcome.slowest_ms < SLOWEST_MS
    assert outcome.resident_peak_kib < outcome.resident_before_kib + GROWTH_KIB


def test_the_same_seed_draws_the_same_inputs() -> None:
    one, other = inputs([b"abc", b"defg"], 5), inputs([b"abc", b"defg"], 5)
    assert [next(one) for _ in range(50)] == [next(other) for _ in range(50)]


def test_a_decoder_that_breaks_is_found() -> None:
    def fragile(raw: bytes) -> None:
        if b"\xff" in raw:
            raise IndexError("planted")

    with pytest.raises(Broken, match="planted"):
        fuzz(Decoder("fragile", lambda: [bytes(30)], lambda: fragile, (ValueError,)), SLICE)
