"""A member on a small disk: the image of the compose file on the project's networks, its data on a tmpfs volume.

The compose file's own volumes are as large as the host's disk, and filling that would be nobody's idea of a test. The
volume is kept mounted by a container that does nothing else, so it outlives the node that stops on it, as a disk does.
"""

from __future__ import annotations

import time

from tests.chaos.containers import IMAGE, SETTLE_S, Containers
from tests.waiting import wait_until

DISK = "160m"
UID = 10001
"""The image's user."""
FILLER = "/disk/filler"
STOPPED_ITSELF = 70


def start_on_small_disk(containers: Containers, node: str) -> None:
    """A node that waits until the cluster takes it in."""
    label, name, disk = f"holdfast.chaos={containers.project}", containers.named(node), containers.named(f"{node}-disk")
    mounted = f"size={DISK},uid={UID},gid={UID},mode=0700"
    options = ("--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", f"o={mounted}")
    containers.docker("volume", "create", "--label", label, *options, disk)
    containers.docker(
        "run", "--detach", "--label", label, "--name", disk, "--volume", f"{disk}:/disk", "--network", "none",
        "--entrypoint", "sleep", IMAGE, "infinity",
    )  # fmt: skip
    containers.docker(
        "create", "--label", label, "--name", name, "--restart", "unless-stopped", "--stop-timeout", "15",
        "--volume", f"{disk}:/var/lib/holdfast", "--publish", f"127.0.0.1:{containers.port(node)}:7100",
        "--network", f"{containers.project}_clients", "--network-alias", node,
        *environment(containers, node), IMAGE,
    )  # fmt: skip
    containers.docker("network", "connect", "--alias", f"{node}-peer", f"{containers.project}_peers", name)
    containers.docker("start", name)


def environment(containers: Containers, node: str) -> list[str]:
    """What the compose file gives a joining node."""
    said = {
        "HOLDFAST_SECRET": containers.secret,
        "HOLDFAST_INSECURE": "true",
        "HOLDFAST_NODE_ID": node,
        "HOLDFAST_PEER_ADVERTISE": f"{node}-peer:7200",
        "HOLDFAST_HTTP_ADVERTISE": f"{node}:7100",
    }
    return [word for name, value in said.items() for word in ("--env", f"{name}={value}")]


def fill(containers: Containers, node: str) -> None:
    """To the last byte, by a file beside the node's own. That dd fails with a full disk is what it is for."""
    for size in ("1M", "4k"):
        script = f"dd if=/dev/zero bs={size} >>{FILLER} 2>/dev/null || true"
        containers.docker("exec", containers.named(f"{node}-disk"), "sh", "-c", script)


def make_room(containers: Containers, node: str) -> None:
    containers.docker("exec", containers.named(f"{node}-disk"), "rm", "-f", FILLER)


def wait_until_stopped_itself(containers: Containers, node: str, since_s: float) -> None:
    """The engine starts it again and again, but remembers how it ended."""

    def ends() -> list[str]:
        form = "{{.Actor.Attributes.exitCode}}"
        span = ("--since", f"{since_s:.3f}", "--until", f"{time.time():.3f}")
        chosen = ("--filter", f"container={containers.container(node)}", "--filter", "event=die")
        return containers.docker("events", *span, *chosen, "--format", form).split()

    def stopped() -> bool:
        return f"{STOPPED_ITSELF}" in ends()

    wait_until(stopped, SETTLE_S, f"{node}, whose disk is full, to stop itself with exit code {STOPPED_ITSELF}", 0.2)
