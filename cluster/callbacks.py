"""Callers' callbacks, kept from harming the cluster: one that fails is reported and concerns nobody else (H5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def contained(done: Callable[[T], None], on_event: Callable[[str, dict[str, Any]], None]) -> Callable[[T], None]:
    """`done`, callable from inside the engine: an exception in it must not look like one of the state machine."""

    def call(outcome: T) -> None:
        try:
            done(outcome)
        except Exception as error:  # noqa: BLE001 - the caller's bug, whatever it is; the log goes on
            on_event("callback_failed", {"callback": repr(done), "error": repr(error)})

    return call
