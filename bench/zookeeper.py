"""A three-node ZooKeeper on loopback from Debian's jar, with its own defaults: it syncs its log before it answers."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

from tests.ports import free_port
from tests.waiting import wait_until

JARS = Path("/usr/share/java")
HEAP = "-Xmx512m"
START_S = 60


def version() -> str | None:
    """None: not installed."""
    jars = sorted(JARS.glob("zookeeper-[0-9]*.jar"))
    if shutil.which("java") is None or not jars:
        return None
    return jars[-1].stem.rpartition("-")[2]


class ZooKeeper:
    def __init__(self, directory: Path) -> None:
        self.ports = [free_port() for _ in range(3)]
        quorum = [(free_port(), free_port()) for _ in range(3)]
        servers = "".join(
            f"server.{number}=127.0.0.1:{one}:{two}\n" for number, (one, two) in enumerate(quorum, start=1)
        )
        self.processes = []
        for number, port in enumerate(self.ports, start=1):
            home = directory / f"z{number}"
            home.mkdir(parents=True)
            (home / "myid").write_text(f"{number}\n")
            config = home / "zoo.cfg"
            config.write_text(
                f"tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={home}\nclientPort={port}\n"
                f"clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n"
                f"4lw.commands.whitelist=srvr\n{servers}"
            )
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            # Debian's log4j prints all it does unless told where: nobody reads it.
            quiet = "-Dlog4j.rootLogger=OFF"
            command = ["java", HEAP, quiet, "-cp", f"{JARS}/zookeeper.jar:{JARS}/slf4j-nop.jar", main, str(config)]
            self.processes.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home)
            )
        wait_until(self._all_serve, START_S, "ZooKeeper")

    def _all_serve(self) -> bool:
        return all(b"Mode: " in _asked(port, b"srvr") for port in self.ports)

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def _asked(port: int, word: bytes) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(word)
            return b"".join(iter(lambda: connection.recv(4096), b""))
    except OSError:
        return b""
