"""A bit that nobody noticed must have said nothing: each excuse, and what is none."""

from __future__ import annotations

from tests.sim.decay import Decay
from tests.sim.disk import SimDisk

PATH = "/data/log/1.wal"
RECORDS = b"record record"
RESERVED = 51


def disk() -> SimDisk:
    made = SimDisk()
    made.overwrite(PATH, RECORDS + bytes(RESERVED))
    return made


def at(files: SimDisk, offset: int) -> Decay:
    decay = Decay(files, (0.0, (offset + 0.5) / (len(RECORDS) + RESERVED), 0.5))
    assert decay.offset == offset and files.byte(PATH, offset) != (RECORDS + bytes(RESERVED))[offset : offset + 1]
    return decay


def test_a_bit_of_a_record_says_something() -> None:
    for offset in range(len(RECORDS)):
        assert not at(disk(), offset).says_nothing()


def test_a_bit_behind_the_records_says_nothing_if_the_records_are_kept() -> None:
    files = disk()
    decay = at(files, len(RECORDS))
    assert decay.says_nothing()
    files.overwrite(PATH, b"record" + bytes(RESERVED))
    assert not decay.says_nothing(), "a record went with it"


def test_a_file_that_is_not_there_any_more_says_nothing() -> None:
    files = disk()
    decay = at(files, 0)
    files.unlink(PATH)
    assert decay.says_nothing()


def test_what_was_never_synced_was_never_promised() -> None:
    files = disk()
    files.open(PATH).pwrite(b"more", len(RECORDS))
    assert at(files, len(RECORDS) + 1).says_nothing() and not at(files, 0).says_nothing()


def test_it_can_be_put_right() -> None:
    files = disk()
    at(files, 3).undo()
    assert files.content(PATH) == RECORDS + bytes(RESERVED)
