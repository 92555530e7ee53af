"""What a benchmark makes of its rounds: turns, medians, ratios, fairness, tables. No system is measured here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as harness
from bench.load import RESULTS, goal, least_goal, results_directory
from bench.lockers import Held
from bench.locks import fairness
from bench.paced import Grpc, Http, paced
from bench.rounds import OURS, Figures, Turn, in_turns, median, ratio, ratios
from bench.table import SUMMARY, summary, table_of
from bench.tap import Tap


def turn(system: str, values: list[float], done: list[str]) -> Turn:
    left = iter(values)

    def work() -> Figures:
        done.append(system)
        return {"per_second": next(left), "operations": 10}

    return Turn("renewals", system, work, lambda: [os.getpid()])


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    done: list[str] = []
    turns = [turn(OURS, [10, 90, 30], done), turn("peer", [5, 9, 10], done)]
    found = asyncio.run(in_turns(turns, 3, lambda line: None))
    assert done == [OURS, "peer"] * 3
    return found


def test_the_median_and_the_spread_are_of_the_rounds(rows: list[dict[str, Any]]) -> None:
    assert rows[0]["figures"]["per_second"] == {"median": 30, "least": 10, "most": 90}
    assert median(rows, "renewals", "per_second", "peer") == 9


def test_a_ratio_is_taken_within_each_round(rows: list[dict[str, Any]]) -> None:
    """The ratio of the medians would be 3.33."""
    found = ratio(rows, "renewals", "per_second", "peer")
    assert found == {"median": 3, "least": 2, "most": 10}
    assert [each["ours_by"] for each in ratios(rows)] == ["peer"]
    assert ratio(rows, "renewals", "per_second", "absent") is None


def test_a_queue_that_is_first_come_first_served_is_fair() -> None:
    held = [Held(asked, 10 + asked, 11 + asked) for asked in range(5)]
    assert fairness(held) == {"fifo_share": 1.0, "overtaken_mean": 0.0, "overtaken_most": 0}


def test_a_client_that_overtakes_is_seen() -> None:
    held = [Held(0, 12, 13), Held(1, 11, 12), Held(2, 10, 11), Held(20, 21, 22)]
    assert fairness(held) == {"fifo_share": 0.5, "overtaken_mean": 0.75, "overtaken_most": 2}


def test_goals_have_a_direction() -> None:
    assert goal("x", 1.0, 1.5)["met"] and not goal("x", 2.0, 1.5)["met"]
    assert least_goal("x", 2.0, 1.5)["met"] and not least_goal("x", 1.0, 1.5)["met"]


def test_a_quick_run_never_goes_to_the_results() -> None:
    place = results_directory(quick=True)
    try:
        assert RESULTS not in (place, *place.parents)
    finally:
        place.rmdir()


def test_the_table_shows_rows_ratios_goals_and_what_is_missing(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    seen = {"cores": 2, "cpu": "x", "load_before": [0.1], "utc": "now"}
    document = {
        "part": "renewals", "machine": seen, "rounds": 3, "rows": rows, "ratios": ratios(rows),
        "goals": [goal("P3 bytes", 12.0, 9)], "not_measured": {"zookeeper": "install it"},
    }  # fmt: skip
    shown = table_of(document)
    for expected in ("30 (10 – 90)", "3.00 (2.00 – 10.00)", "NOT met", "not measured: zookeeper"):
        assert expected in shown
    assert "0 of 0 goals" in summary(tmp_path)
    (tmp_path / "other.json").write_text(json.dumps({"machine": seen, "goals": [goal("P1 visits", 1.0, 2)]}))
    assert "1 of 1 goals" in summary(tmp_path) and "[other](other.json): 2 cores" in summary(tmp_path)


def test_the_summary_has_all_results_there_are() -> None:
    assert (RESULTS / SUMMARY).read_text() == summary(RESULTS), "run make bench BENCH_ARGS='--tables'"


def test_every_part_is_a_module_with_a_stated_duration() -> None:
    assert {"renewals", "millions", "locks", "lookups", "watchers", "expiry", "failover"} <= set(harness.known())
    whole = [part for part in harness.known().values() if part.always]
    assert sum(part.minutes for part in whole) <= 20
    assert all(name in harness.listed() for name in harness.known())


# --- the generators of our own ----------------------------------------------------------------------------------------


class Echo:
    """A server on a port of its own that answers every request with `answer`."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = ("127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # A client that has seen enough hangs up in the middle.
        with connection, contextlib.suppress(OSError):
            while connection.recv(4096):
                connection.sendall(self._answer)

    def close(self) -> None:
        # A thread that waits in accept keeps the port open until it wakes.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_paced_requests_are_all_answered_and_counted() -> None:
    echo = Echo(ANSWER)
    try:
        found = paced(echo.address, lambda: Http(b"GET / HTTP/1.1\r\n\r\n"), 200, 0.5)
    finally:
        echo.close()
    assert found["operations"] == 140
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["longest_ms"]


def test_an_answer_that_is_no_success_stops_the_round() -> None:
    echo = Echo(ANSWER.replace(b"200 OK", b"503 No"))
    try:
        with pytest.raises(RuntimeError, match="not answered"):
            paced(echo.address, lambda: Http(b"GET / HTTP/1.1\r\n\r\n"), 100, 0.1)
    finally:
        echo.close()


def test_a_grpc_answer_ends_with_its_trailers_and_settings_are_acknowledged() -> None:
    speech = Grpc("service/Method", b"message")
    speech.ask()
    settings = bytes.fromhex("000000040000000000")
    headers, content = bytes.fromhex("000001010400000001") + b"\x88", bytes.fromhex("000003000000000001") + b"abc"
    received = bytearray(settings + headers + content)
    assert speech.hear(received) == (False, bytes.fromhex("000000040100000000"))
    trailers = bytes.fromhex("000001010500000001") + b"\x88"
    received += trailers[:5]
    assert speech.hear(received) == (False, b"")
    received += trailers[5:]
    assert speech.hear(received) == (True, b"")


def test_a_tap_counts_both_ways() -> None:
    echo = Echo(b"four")
    try:
        with Tap(echo.address) as tap, socket.create_connection(tap.address) as connection:
            for _ in range(3):
                connection.sendall(b"hello")
                assert connection.recv(16) == b"four"
            assert tap.a(3) == {"bytes_sent_each": 5, "bytes_answered_each": 4}
    finally:
        echo.close()
