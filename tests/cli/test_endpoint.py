"""Whatever answers where a node should be: one line that says so, and whether a change may have been made."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator

import pytest

from coordinator.cli import main

CLUSTER = {
    "cluster_id": "c", "leader": "n1", "term": 1, "revision": 1,
    "members": [{"id": "n1", "role": "leader", "http": "h:1", "peer": "p:1", "pid": 1, "term": 1, "applied": 1}],
}  # fmt: skip


@contextlib.contextmanager
def answering(on_read: bytes, on_change: bytes = b"") -> Iterator[str]:
    """An address at which requests are answered so. Nothing: it hangs up."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked = self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            self.wfile.write(on_read if asked.startswith(b"GET ") else on_change)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield "127.0.0.1:{1}".format(*server.server_address)
        finally:
            server.shutdown()
            serving.join()


def page(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (size, body)


@pytest.mark.parametrize(
    "said",
    [b"", b"\x15\x03\x01\x00\x02\x02\x16\r\n\r\n", b"SSH-2.0-\x1b[31mssh\r\n", page(b"not json"), page(b"{", 100)],
    ids=["nothing", "tls", "ssh", "no-json", "half"],
)
def test_what_is_no_node_is_told_in_one_line(capsys: pytest.CaptureFixture[str], said: bytes) -> None:
    with answering(said) as address:
        assert main(["status", "--endpoint", address]) == 75
        told = capsys.readouterr().err
        assert told.startswith(f"holdfast: no answer from http://{address}: ") and told.count("\n") == 1, told
        assert told.rstrip("\n").isprintable() and ("\\x" not in told)
        assert main(["status", "--endpoint", address, "--json"]) == 75
        assert json.loads(capsys.readouterr().err)["error"]["outcome"] == "retry"


def test_a_change_that_was_not_answered_may_have_been_made(capsys: pytest.CaptureFixture[str]) -> None:
    """To be tried again at once, as a program would understand `retry`, it is not."""
    for words in (["transfer"], ["member", "remove", "n1"], ["snapshot"]):
        with answering(page(json.dumps(CLUSTER).encode())) as address:
            assert main([*words, "--endpoint", address, "--json"]) == 75
            error = json.loads(capsys.readouterr().err)["error"]
            assert (error["code"], error["outcome"]) == ("unavailable", "unknown"), words
            assert "look before you try again" in error["message"]


def test_a_change_that_nobody_heard_was_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b"") as address:
        pass
    assert main(["snapshot", "--endpoint", address, "--json"]) == 75
    assert json.loads(capsys.readouterr().err)["error"]["outcome"] == "retry"


@pytest.mark.parametrize("where", ["", " , ", "ftp://x", "a b:1"])
def test_an_endpoint_that_is_none_is_a_mistake_of_whoever_says_it(
    capsys: pytest.CaptureFixture[str], where: str
) -> None:
    for words in (["status"], ["locks", "list"]):
        code = main([*words, "--endpoint", where, "--timeout", "0.5"])
        told = capsys.readouterr().err
        assert code == (75 if where == "a b:1" else 1) and told.startswith("holdfast: "), (words, told)


def test_who_needs_a_token_is_told_how_to_give_it(capsys: pytest.CaptureFixture[str]) -> None:
    said = json.dumps({"error": {"code": "unauthenticated", "message": "a token is needed", "outcome": "denied"}})
    head = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(said)
    with answering(head + said.encode()) as address:
        assert main(["status", "--endpoint", address]) == 1
    first, hint = capsys.readouterr().err.splitlines()
    assert first == "holdfast: a token is needed", "who only looked needs not be told that nothing was changed"
    assert "--token-file" in hint
