"""Nodes of two releases in one cluster: what each tells of the levels it knows, and which of them cannot take part.

A level is a number to which only the state machine gives a meaning: by whose rules it goes (`ports.Levelled`). It is
raised by an entry of the log, once every member knows the next one, and never lowered. A node that does not know the
level in force must not apply another entry; one that tells no levels is of a release before there were any.

The entry that raises it is of a kind of its own (`KIND`). A release stops at an entry whose kind it does not know, the
one before levels included: so none goes past it without knowing what it means, however it came into its log.
"""

from __future__ import annotations

from typing import Final

import msgpack

from cluster.ports import Levelled, Message, StateMachine

FIRST: Final = 1
KIND: Final = b"l"
"""Of an entry's payload; behind it is what a batch of commands has."""
FIELD: Final = "digest"
"""Where a status message says it. A node of the release before levels closes a link over a field that it does not know;
this one it takes for granted and never looks into."""


class _OneLevel:
    level = known_level = FIRST


def levels_of(machine: StateMachine) -> Levelled:
    """A machine that knows no levels has one for ever."""
    return machine if isinstance(machine, Levelled) else _OneLevel()


def told(levels: Levelled, *behind: int | bytes) -> bytes:
    """What others may add behind these two is not looked at here: `cluster.lives` does."""
    packed: bytes = msgpack.packb([levels.known_level, levels.level, *behind])
    return packed


def heard(message: Message) -> tuple[int, int]:
    """Up to which level a peer knows them, and which is in force there."""
    try:
        known, level, *_ = msgpack.unpackb(message.get(FIELD, b""))
    except (ValueError, TypeError, msgpack.UnpackException):
        return FIRST, FIRST
    natural = all(type(each) is int and each >= FIRST for each in (known, level))
    return (known, level) if natural else (FIRST, FIRST)


def unfit(own: Levelled, applied: int, peer: str, message: Message) -> str | None:
    """Why this node must stop, by what a peer tells of itself."""
    _, level = heard(message)
    if level > own.known_level:
        return (
            f"this cluster goes by level {level}, says {peer}, and this node knows levels up to {own.known_level}: "
            f"start it with a release that knows level {level}, and without a lower level_at_most"
        )
    if level > own.level and message["applied"] <= applied:
        # A release before levels applied the entry that raised it, took it for nonsense, and went on.
        return (
            f"entries up to {message['applied']} brought {peer} to level {level}, and this node to {own.level}: it was "
            "run by an older release meanwhile, and its state is not that of the others. Replace it: "
            "holdfast member replace"
        )
    return None
