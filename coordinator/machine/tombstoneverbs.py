"""What the commands of holders are called in the log, and what their fields must be."""

from __future__ import annotations

from typing import Any

from coordinator.machine import commands as c
from coordinator.machine import tombstonecommands as t
from coordinator.machine.checks import Check, a_flag, a_name, integer, names, optional
from coordinator.machine.limits import MAX_ID, MAX_REVISION, MAX_TOKEN, MAX_VERIFIED_COPIES

_session = optional(integer(1, MAX_ID))
_token = integer(1, MAX_TOKEN)


def _resource_ids(value: Any) -> str | None:
    return None if value == () else names(MAX_VERIFIED_COPIES)(value)


def _incarnations(value: Any) -> str | None:
    fits = type(value) is bytes and len(value) % 8 == 0 and len(value) <= 8 * MAX_VERIFIED_COPIES
    return None if fits else f"at most {MAX_VERIFIED_COPIES} ids of 8 bytes each"


TOMBSTONE_VERBS: dict[str, tuple[type[c.Command], tuple[Check, ...]]] = {
    "copy.register": (t.RegisterCopy, (a_name, a_name, _session, optional(_token))),
    "copy.verify": (t.VerifyCopies, (a_name, _resource_ids, _incarnations, a_flag, _session, optional(_token))),
    "tombstone.ack": (t.AckTombstones, (a_name, _token, integer(0, MAX_REVISION))),
    "holder.remove": (t.RemoveHolder, (a_name, optional(_token))),
}
