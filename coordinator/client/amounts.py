"""Amounts as callers give them: checked here, because what is no number fails where nobody would look for it."""

from __future__ import annotations

import math

from coordinator.client.errors import Invalid

MAX_DRIFT = 0.1
"""As that of nodes."""


def number(name: str, given: object, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
        raise Invalid(f"{name} is {what}, not {given!r}", details={"field": name})
    return given


def seconds(name: str, given: object) -> float:
    """It may be infinite; what else is out of bounds, the cluster says."""
    return number(name, given, "a number of seconds")


def milliseconds(name: str, given: object) -> int:
    if math.isinf(amount := seconds(name, given)):
        raise Invalid(f"{name} has an end: give it in seconds", details={"field": name})
    return round(amount * 1000)


def drift(given: object) -> float:
    part = number("drift", given, f"a part of the time, from 0 to {MAX_DRIFT:g}")
    if not 0 <= part <= MAX_DRIFT:
        raise Invalid(
            f"drift is a part of the time, from 0 to {MAX_DRIFT:g}, not {given!r}", details={"field": "drift"}
        )
    return part
