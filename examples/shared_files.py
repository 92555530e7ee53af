"""Three services share temporary files; a client crashes; what nobody needs any more is deleted, and nothing else.

Run it against a development cluster: `make up` in one terminal, `.venv/bin/python examples/shared_files.py` in another.

Each service is a process with a directory of its own. It registers its files as resources, and its clean-up worker
deletes the ones it is handed. The files refer to each other in a circle (A → B → C → A), so their reference counts
never drop to zero. What keeps them is the lease of a client, which is then killed with SIGKILL.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

LEASE_MS = 3_000
BUFFER_MS = 2_000
SERVICES = ("upload", "thumbnail", "report")


def call(url: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request; an error of the API is raised with what it says."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/api/v1{path}", data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{method} {path}: {error.read().decode()}") from error


# --- the services ---------------------------------------------------------------------------------------------------


def service(url: str, name: str, root: Path) -> None:
    """Owns the files in `root/name`: registers them, and deletes those it is told to."""
    for file in sorted((root / name).iterdir()):
        body = {"provider": name, "kind": "temp-file", "safety_buffer_ms": BUFFER_MS}
        call(url, "PUT", f"/resources/{name}:{file.name}", body)
    worker = f"{name}-worker-{os.getpid()}"
    while True:
        claim = {"provider": name, "worker_id": worker, "max": 10, "claim_ms": 5_000, "wait_ms": 2_000}
        for item in call(url, "POST", "/reclaims/claim", claim)["items"]:
            file = root / name / item["resource_id"].partition(":")[2]
            # Deleting what is deleted already is no error: a worker that crashed after this line may have done it.
            file.unlink(missing_ok=True)
            print(f"    {worker} deletes {item['resource_id']}", flush=True)
            done = {"worker_id": worker, "reclaim_id": item["reclaim_id"], "token": item["token"]}
            call(url, "POST", "/reclaims/ack", done)


def client(url: str, client_id: str, resource_id: str) -> None:
    """Uses a file for as long as it lives: a lease, renewed at a third of its time."""
    body = {"resource_id": resource_id, "client_id": client_id, "lease_duration_ms": LEASE_MS}
    lease = call(url, "POST", "/leases/acquire", body)
    while True:
        time.sleep(LEASE_MS / 3_000)
        renewal = {"lease_id": lease["lease_id"], "client_id": client_id, "extend_duration_ms": LEASE_MS}
        call(url, "POST", "/leases/renew", renewal)


# --- the story ------------------------------------------------------------------------------------------------------


def tree(root: Path) -> list[str]:
    lines = []
    for directory in sorted(root.iterdir()):
        files = sorted(file.name for file in directory.iterdir())
        lines += [f"    {directory.name}/", *(f"      {name}" for name in files)]
    return lines


def show(url: str, resource_id: str) -> None:
    told = call(url, "GET", f"/resources/{resource_id}/explain")
    if told["alive"]:
        print(f"    {resource_id} is alive: {' → '.join(told['path'])}, kept by {told['root']['client_id']}'s lease")
    else:
        print(f"    {resource_id} is not kept by anything; it waits for {told['waiting_for']}")


def is_registered(url: str, resource_id: str) -> bool:
    try:
        call(url, "GET", f"/resources/{resource_id}")
    except RuntimeError as error:
        if "unknown_resource" not in str(error):
            raise
        return False
    return True


def wait_until(resource_ids: list[str], url: str, *, registered: bool) -> None:
    """All of them are, or none of them is any more: their services have said so."""
    until = time.monotonic() + 60
    while any(is_registered(url, each) != registered for each in resource_ids):
        if time.monotonic() > until:
            raise RuntimeError("nothing changed for a minute; is a leader running?")
        time.sleep(0.1)


def story(url: str, root: Path, run: str) -> None:
    context = multiprocessing.get_context("spawn")
    files = {name: [f"{run}-draft.tmp", f"{run}-final.tmp"] for name in SERVICES}
    for name in SERVICES:
        (root / name).mkdir()
        for file in files[name]:
            (root / name / file).write_bytes(os.urandom(1024))
    started = [context.Process(target=service, args=(url, name, root), daemon=True) for name in SERVICES]
    drafts, finals = ([f"{name}:{files[name][kind]}" for name in SERVICES] for kind in (0, 1))
    crashing = context.Process(target=client, args=(url, f"{run}-alice", drafts[0]), daemon=True)
    living = context.Process(target=client, args=(url, f"{run}-bob", finals[0]), daemon=True)
    try:
        for process in (*started, crashing, living):
            process.start()
        wait_until([*drafts, *finals], url, registered=True)
        for circle in (drafts, finals):
            for source, target in zip(circle, [*circle[1:], circle[0]], strict=True):
                body = {"source_resource_id": source, "target_resource_id": target}
                call(url, "PUT", "/edges", body)
        print("1. Three services, six files. The drafts refer to each other in a circle, and so do the finals.")
        print("\n".join(tree(root)))
        print("2. Alice works with the drafts, Bob with the finals. Why is the last draft kept?")
        show(url, drafts[2])
        print(
            f"3. Alice crashes (SIGKILL). Her lease ends after {LEASE_MS} ms, the safety buffer {BUFFER_MS} ms later."
        )
        assert crashing.pid is not None
        os.kill(crashing.pid, signal.SIGKILL)
        wait_until(drafts, url, registered=False)
        print("4. The circle was found and deleted, file by file, by the services that own them. Bob's files stay.")
        print("\n".join(tree(root)))
        show(url, finals[2])
        print("5. And if Bob's client ended now?")
        told = call(url, "GET", f"/resources/{finals[2]}/explain?what_if=revoke:client/{run}-bob")
        print(f"    these would go: {', '.join(told['would_reclaim'])}")
        print("6. It does.")
        assert living.pid is not None
        os.kill(living.pid, signal.SIGKILL)
        wait_until(finals, url, registered=False)
        print("\n".join(tree(root)))
    finally:
        for process in (*started, crashing, living):
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="Three services share temporary files; a client crashes.")
    parser.add_argument("--endpoints", "--url", default="http://127.0.0.1:7101", help="any node of the cluster")
    url = parser.parse_args().endpoints.partition(",")[0]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what the services print stands where it happened, also in a pipe
    try:
        call(url, "GET", "/cluster")
    except OSError as error:
        print(f"no Holdfast node answers at {url} ({error}); start one with `make up`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as directory:
        story(url, Path(directory), f"{os.getpid()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
