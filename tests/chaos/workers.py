"""Clients at work while the containers suffer: they share one lock, and write to a database that checks its tokens.

Each worker asks any node for the lock, adds one to a row with the conditional UPDATE of the fencing pattern, and gives
the lock back. Whatever is done to the cluster: no token is given twice, the row's token never goes back, every
write counts once, and a lease that was acknowledged at the start is there at the end.
"""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKERS = 4
TIMEOUT_S = 4.0


class Workers:
    def __init__(self, directory: Path, endpoints: Callable[[], list[str]]) -> None:
        self._database = directory / "ledger.db"
        self._endpoints = endpoints
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._holders: dict[int, str] = {}
        self._shared: list[int] = []
        self._written = 0
        self._fenced = 0
        self._unanswered = 0
        self._lease = ""
        self._threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(WORKERS)]
        with sqlite3.connect(self._database) as connection:
            connection.execute("CREATE TABLE ledger (amount INTEGER, last_fencing_token INTEGER)")
            connection.execute("INSERT INTO ledger VALUES (0, 0)")

    def start(self) -> None:
        body = {"resource_id": "kept", "client_id": "chaos", "lease_duration_ms": 3_600_000}
        self._lease = self._post(self._endpoints()[0], "/leases/acquire", body)["lease_id"]
        for thread in self._threads:
            thread.start()

    def finish(self) -> str:
        """Stop, then check; one line saying what was seen."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)
        with sqlite3.connect(self._database) as connection:
            [(amount, last)] = connection.execute("SELECT amount, last_fencing_token FROM ledger")
        lease = self._get(self._endpoints()[-1], f"/leases/{self._lease}")
        if self._shared:
            raise AssertionError(f"tokens given to two holders each: {self._shared[:5]}")
        if amount != self._written or last != max(self._holders, default=0):
            raise AssertionError(f"{self._written} writes were confirmed, the ledger has {amount} up to token {last}")
        if lease["state"] != "ACTIVE":
            raise AssertionError(f"the lease acknowledged at the start is {lease['state']}")
        if self._written < WORKERS:
            raise AssertionError(f"only {self._written} writes: the workers hardly worked")
        return (
            f"{self._written} guarded writes with {len(self._holders)} tokens, {self._fenced} late ones refused, "
            f"{self._unanswered} requests without an answer, and the first lease is still there"
        )

    def _work(self, number: int) -> None:
        rng = random.Random(number)
        turn = 0
        while not self._stop.is_set():
            turn += 1
            node = rng.choice(self._endpoints())
            client = f"worker-{number}"
            body = {"lock_key": "ledger", "client_id": client, "lease_time_ms": 2000, "block_time_ms": 1000}
            try:
                granted = self._post(node, "/locks/acquire", {**body, "request_id": f"{number}-{turn}"})
                self._write(client, granted["fencing_token"])
                held = {"lock_key": "ledger", "client_id": client, "fencing_token": granted["fencing_token"]}
                while self._post(node, "/locks/release", held)["hold_count"] > 0:
                    pass  # holds left over from a release that got lost
            except urllib.error.HTTPError as refusal:
                refusal.close()  # held by another, not the holder any more, or no leader: the next turn asks again
            except (OSError, ValueError):
                with self._guard:
                    self._unanswered += 1
                self._stop.wait(0.05)

    def _write(self, client: str, token: int) -> None:
        """A worker whose release got lost still holds the lock: asking again it gets the same token, too late."""
        with self._guard, sqlite3.connect(self._database) as connection:
            if self._holders.setdefault(token, client) != client:
                self._shared.append(token)
            changed = connection.execute(
                "UPDATE ledger SET amount = amount + 1, last_fencing_token = ? WHERE last_fencing_token < ?",
                (token, token),
            ).rowcount
            self._written += changed
            self._fenced += 1 - changed

    def _post(self, endpoint: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"http://{endpoint}/api/v1{path}", json.dumps(body).encode(), method="POST")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            told: dict[str, Any] = json.load(answer)
            return told

    def _get(self, endpoint: str, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{endpoint}/api/v1{path}", timeout=TIMEOUT_S) as answer:
            told: dict[str, Any] = json.load(answer)
            return told
