"""A slice of the fuzzing in every test run: each decoder ends every input with what it reads or a plain refusal."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace

import pytest

from coordinator.machine.codec import encode_command
from coordinator.machine.commands import AcquireLease
from tests.cli.processes import REPOSITORY
from tests.fuzz.decoders import DECODERS, Decoder
from tests.fuzz.heads import Heads, Misread, heads
from tests.fuzz.journals import Records, records, segments
from tests.fuzz.machines import Heartbeats, Restores
from tests.fuzz.mutation import inputs
from tests.fuzz.running import Broken, fuzz

SLICE = 1 << 20
SLOWEST_MS = 500
GROWTH_KIB = 64 << 10
"""A process of the tests has about 100 MiB: less than as much again."""
REACH_A_MACHINE = {"heartbeats", "commands", "state", "snapshot", "backup"}


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_damaged_bytes_are_refused(decoder: Decoder) -> None:
    gc.freeze()  # what other tests have left is not searched while an input is timed
    try:
        outcome = fuzz(decoder, SLICE)
    finally:
        gc.unfreeze()
    assert outcome.refused or not decoder.refusals
    assert outcome.slowest_ms < SLOWEST_MS
    assert outcome.resident_peak_kib < outcome.resident_before_kib + GROWTH_KIB
    assert (outcome.digests > 1) == (decoder.name in REACH_A_MACHINE)


def test_the_same_seed_draws_the_same_inputs() -> None:
    one, other = inputs([b"abc", b"defg"], 5), inputs([b"abc", b"defg"], 5)
    assert [next(one) for _ in range(50)] == [next(other) for _ in range(50)]


def test_a_decoder_that_breaks_is_found() -> None:
    def fragile(raw: bytes) -> None:
        if b"\xff" in raw:
            raise IndexError("planted")

    with pytest.raises(Broken, match="planted"):
        fuzz(Decoder("fragile", lambda: [bytes(30)], lambda: fragile, (ValueError,)), SLICE)


def test_memory_that_was_given_back_at_once_is_in_the_peak() -> None:
    """In a process of its own, as each row of the table is: not every kernel can be asked to count anew."""
    program = f"""
from tests.fuzz.decoders import Decoder
from tests.fuzz.running import fuzz
sizes = iter([0])  # the seeds themselves are no damage
greedy = lambda raw: bytearray(next(sizes, {2 * GROWTH_KIB << 10})) and None
outcome = fuzz(Decoder("greedy", lambda: [b"x"], lambda: greedy, ()), 100)
print(outcome.resident_peak_kib - outcome.resident_before_kib)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert int(run.stdout) > GROWTH_KIB


def test_a_refused_input_that_changed_a_machine_is_found() -> None:
    class Leaky(Heartbeats):
        def __call__(self, raw: bytes) -> None:
            machine = self.unchanged.machine
            machine.apply(machine.revision + 1, machine.now_ms, [encode_command(AcquireLease("r", "a", 1_000))])
            raise ValueError("refused, and yet")

    with pytest.raises(AssertionError, match="the state changed"):
        fuzz(Decoder("leaky", lambda: [bytes(30)], Leaky, (ValueError,)), 100)


def test_a_restore_that_tears_is_found() -> None:
    def torn(raw: bytes) -> list[bytes]:
        reader.unchanged.machine.state.last_token += 1
        raise ValueError("in the middle")

    reader = Restores(torn)
    with pytest.raises(AssertionError, match="the state changed"):
        fuzz(Decoder("torn", lambda: [bytes(30)], lambda: reader, (ValueError,)), 100)


def test_a_head_that_aiohttp_reads_otherwise_is_found() -> None:
    good = heads()[0]
    read = Heads()
    read(good)
    head = read.head(good)
    with pytest.raises(Misread):
        read.compare(replace(head, method="PUT"), good)


def test_records_are_framed_as_the_node_frames_them() -> None:
    """The good seed comes out as the segment it was taken from, so it is the fields that an input damages."""
    (whole,), seed = segments(), records()[0]
    assert whole.startswith(Records().framed(seed))
    assert len(Records().framed(seed)) > 1_000
