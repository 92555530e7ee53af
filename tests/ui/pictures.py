"""The pictures in docs/images, taken anew: `python -m tests.ui.pictures`. A cluster works for --seconds 120 before."""

from __future__ import annotations

import argparse
import math
import tempfile
import threading
import time
from pathlib import Path

from tests.client.nodes import nodes
from tests.ui import scene
from tests.ui.asking import ask, lock, quoted
from tests.ui.browser import browsing

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WORKED_S = 120.0
OVERVIEW, RESOURCE, PHONE = (1280, 1010), (1280, 760), (360, 780)


def work(node: str, until: float) -> None:
    """Leases that are renewed, more and fewer of them, and a few that end by themselves."""
    owned = {"client_id": "ingest-7", "lease_duration_ms": scene.LONG_MS}
    names = [f"tmp/upload-{number:04}" for number in range(400)]
    leases = ask(node, "POST", "/leases/acquire-batch", {**owned, "resource_ids": names})["lease_ids"]
    while (left := until - time.monotonic()) > 0:
        share = 0.55 + 0.35 * math.sin(left / 9)
        beat = {"client_id": "ingest-7", "extend_duration_ms": scene.LONG_MS, "lease_ids": leases[: int(400 * share)]}
        ask(node, "POST", "/heartbeats", beat)
        short = {"client_id": "ingest-8", "lease_duration_ms": 2_000, "resource_ids": [f"tmp/part-{left:.3f}"]}
        ask(node, "POST", "/leases/acquire-batch", short)
        held = lock(node, "cron/rotate-keys", "cron-7")
        freed = {"lock_key": "cron/rotate-keys", "client_id": "cron-7", "fencing_token": held["fencing_token"]}
        ask(node, "POST", "/locks/release", freed)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.ui.pictures", description=__doc__)
    parser.add_argument("--seconds", type=float, default=WORKED_S, help="that charts are of (default: %(default)s)")
    worked_s: float = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, nodes(Path(directory)) as cluster, browsing() as page:
        node = cluster.endpoints[0]
        waiting = scene.set_up(node)
        page.look(*OVERVIEW)
        page.go(f"{node}/ui/")
        page.wait_for_text("#connection", "live")
        worker = threading.Thread(target=work, args=(node, time.monotonic() + worked_s))
        worker.start()
        worker.join()
        page.photograph(IMAGES / "dashboard-overview.png", whole=False)
        page.look(*RESOURCE)
        page.view(f"#/graph?id={quoted('layout/2')}")
        page.wait_for("!!document.querySelector('svg[role=group] g.cycle')", "the graph")
        page.click("[data-key=ask]")
        page.wait_for_text("#loss", "would be reclaimed")
        page.value("scrollTo(0, 0)")
        page.photograph(IMAGES / "dashboard-resources.png", whole=False)
        page.look(*PHONE, dark=True)
        page.value("document.querySelector('#graph').scrollIntoView()")
        page.photograph(IMAGES / "dashboard-phone.png", whole=False)
        scene.let_go(node, waiting)


if __name__ == "__main__":
    main()
