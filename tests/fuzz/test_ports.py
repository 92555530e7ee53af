"""A slice of what `python -m tests.fuzz --ports` sends to real nodes; and that its checks find what they are for."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.fuzz.ports import fuzz_ports
from tests.fuzz.shots import Aim, Seen, Shooter, Shot, aims, shots
from tests.fuzz.target import traces_in
from tests.security.tenants import Belongings

SLICE = 20_000
HAS = Belongings("0000000100000000", "0000000100000000", "0000000100000000", 3)


def test_damaged_input_to_every_port_of_a_cluster_is_refused_and_changes_nothing() -> None:
    report = fuzz_ports(SLICE)
    assert report["reached"], {name: told for name, told in report.items() if name != "endpoints"}
    assert report["least_bytes_an_operation"] >= SLICE
    assert all(size >= SLICE for size in report["port_bytes"].values())
    assert {"400", "401"} <= report["answers"].keys()
    assert sum(each["answers"].get("400", 0) for each in report["endpoints"].values()) == report["answers"]["400"]
    assert json.dumps(report)


def test_a_trace_in_a_log_counts_but_for_what_the_grpc_library_prints_by_itself() -> None:
    head, theirs = (
        "Traceback (most recent call last):\n",
        '  File "src/python/grpcio/grpc/server.pyx.pxi", line 7, in x\n',
    )
    printed = f"{head}{theirs}{theirs}grpc._cython.cygrpc.ExecuteBatchError: Failed\n"
    assert traces_in(f"a line\n{printed}a line\n{printed}") == ([], 2)
    line = "E1118 20:55:25.334561   16665 hpack_parser.cc:1031] Error parsing ':scheme' metadata: invalid value\n"
    halves = f"{line}{head}{theirs}{line}{line}{theirs}grpc._cython.cygrpc.ExecuteBatchError: Failed\n{line}"
    assert traces_in(halves) == ([], 1)
    handler = f'{head}{theirs}  File "coordinator/rpc/server.py", line 7, in serve\nKeyError: 3\n'
    ours, library = traces_in(handler + printed)
    assert len(ours) == library == 1
    whole = f"{head}{theirs}UnicodeDecodeError: invalid start byte\n"
    assert traces_in(whole) == ([whole], 0)
    said = 'n1 ERROR asyncio message="x" trace="Traceback (most recent call last): ..."'
    assert traces_in(said) == ([said], 0)


def test_the_same_seed_fires_the_same_shots() -> None:
    aim = aims(HAS)[0]
    one, other = shots(aim, None, 5), shots(aim, None, 5)
    assert [next(one) for _ in range(20)] == [next(other) for _ in range(20)]


def test_only_bodies_that_no_rule_lets_through_count_as_refused() -> None:
    aim = next(each for each in aims(HAS) if each.path == "/api/v1/locks/acquire")
    assert not aim.refused("application/json", json.dumps(aim.body).encode())
    assert aim.refused("application/json", b"[")
    assert aim.refused("application/json", b'{"lock_key": 7}')
    assert not Aim("GET x", "GET", "/x", None, None).refused("application/json", b"{}")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops", ["500"]),
        (b'HTTP/1.1 400 Bad\r\nContent-Length: 12\r\n\r\n{"error": 7}', ["400"]),
        (b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\n{}", ["400"]),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", []),
    ],
)
def test_an_answer_that_is_not_of_the_one_error_shape_is_found(answer: bytes, found: list[str]) -> None:
    async def scenario() -> Seen:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        seen, shooter = Seen(), Shooter(server.sockets[0].getsockname())
        async with server:
            await shooter.fire(Shot(b"GET / HTTP/1.1\r\n\r\n", is_last=False), seen)
            shooter.close()
        return seen

    assert [text[:3] for text in asyncio.run(scenario()).untyped] == found
