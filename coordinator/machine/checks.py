"""What the fields of commands must be, as small functions that say what is wanted when a value does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.machine.limits import MAX_NAME_CHARACTERS, MAX_REQUEST_ID_BYTES

Check = Callable[[Any], str | None]
"""None when the value fits, else what is wanted."""


def a_name(value: Any) -> str | None:
    if type(value) is str and 0 < len(value) <= MAX_NAME_CHARACTERS:
        return None
    return f"a text of 1 to {MAX_NAME_CHARACTERS} characters"


def integer(low: int, high: int) -> Check:
    wanted = f"an integer from {low} to {high}"
    return lambda value: None if type(value) is int and low <= value <= high else wanted


def optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def names(most: int) -> Check:
    wanted = f"1 to {most} texts of 1 to {MAX_NAME_CHARACTERS} characters"

    def check(value: Any) -> str | None:
        fits = type(value) is tuple and 0 < len(value) <= most and not any(map(a_name, value))
        return None if fits else wanted

    return check


def distinct_names(most: int) -> Check:
    several = names(most)

    def check(value: Any) -> str | None:
        return several(value) or (None if len(set(value)) == len(value) else "each text once")

    return check


def packed(most: int, least: int = 1) -> Check:
    wanted = f"{least} to {most} ids of 8 bytes each"

    def check(value: Any) -> str | None:
        fits = type(value) is bytes and len(value) % 8 == 0 and 8 * least <= len(value) <= 8 * most
        return None if fits else wanted

    return check


def a_request_id(value: Any) -> str | None:
    if type(value) is bytes and 0 < len(value) <= MAX_REQUEST_ID_BYTES:
        return None
    return f"1 to {MAX_REQUEST_ID_BYTES} bytes"


def a_mode(value: Any) -> str | None:
    return None if type(value) is str and value in ("exclusive", "shared") else "exclusive or shared"


def a_flag(value: Any) -> str | None:
    return None if type(value) is bool else "true or false"


def a_policy(value: Any) -> str | None:
    fits = type(value) is str and value in ("cascade", "orphan", "block")
    return None if fits else "cascade, orphan or block"


def text(most: int) -> Check:
    wanted = f"a text of at most {most} characters"
    return lambda value: None if type(value) is str and len(value) <= most else wanted
