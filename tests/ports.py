"""Ports for the processes that tests start: each is given out once, also among test runs side by side.

They lie below the ephemeral range, so that no outgoing connection takes one before its process binds it.
"""

from __future__ import annotations

import os
import socket

FIRST, BLOCKS, BLOCK = 20_000, 1_200, 10
_blocks: dict[int, socket.socket] = {}
"""What this process has taken, until it ends."""
_single: list[int] = []


def free_base(count: int) -> int:
    """A port after which `count` ports are this process's own."""
    if count >= BLOCK:
        raise ValueError(f"at most {BLOCK - 1} ports at a time")
    for turn in range(BLOCKS):
        number = (os.getpid() * 17 + turn) % BLOCKS
        base = FIRST + number * BLOCK
        if number not in _blocks and _claimed(number) and all(_is_free(base + each) for each in range(1, count + 1)):
            return base
    raise AssertionError("no free ports")


def free_bases(count: int, apart: int, times: int) -> int:
    """A port after which `count` ports are this process's own, and so after each of `times` bases `apart`."""
    for turn in range(BLOCKS):
        first = (os.getpid() * 17 + turn) % BLOCKS
        numbers = [first + step * apart // BLOCK for step in range(times)]
        if numbers[-1] >= BLOCKS or any(number in _blocks for number in numbers):
            continue
        ports = [FIRST + number * BLOCK + each for number in numbers for each in range(1, count + 1)]
        if all(map(_claimed, numbers)) and all(map(_is_free, ports)):
            return FIRST + first * BLOCK
    raise AssertionError("no free ports")


def free_port() -> int:
    if not _single:
        base = free_base(BLOCK - 1)
        _single.extend(range(base + BLOCK - 1, base, -1))
    return _single.pop()


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def _claimed(number: int) -> bool:
    """A name in the kernel is the claim: nobody else can bind it, and it goes with the process."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0holdfast-test-ports-{number}")
    except OSError:
        claim.close()
        return False
    _blocks[number] = claim
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
