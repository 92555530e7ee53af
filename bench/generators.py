"""Load generators written in C, so that no system is handicapped by its client: wrk for HTTP, h2load for gRPC.

redis-benchmark is in bench/redis.py, which nothing else uses.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.wire import Address

WRK_SCRIPT = """\
local head, bodies, stride, at
function init(arguments)
  head = io.open(arguments[1], "rb"):read("*a")
  bodies = io.open(arguments[2], "rb"):read("*a")
  stride, at = tonumber(arguments[3]), 0
end
function request()
  if at + stride > #bodies then at = 0 end
  local made = head .. bodies:sub(at + 1, at + stride)
  at = at + stride
  return made
end
function done(summary, latency, requests)
  local e = summary.errors
  local form = '\\nJSON {"requests": %d, "micros": %d, "failed": %d, "p50": %.1f, "p99": %.1f, "longest": %.1f}\\n'
  io.write(string.format(form, summary.requests, summary.duration, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(99), latency.max))
end
"""


@dataclass(frozen=True)
class Requests:
    """What wrk sends: `head` and then the next `stride` bytes of `bodies`, from the start again at their end."""

    head: bytes
    bodies: bytes
    stride: int


def wrk(address: Address, made: Requests, connections: int, seconds: float) -> dict[str, float]:
    """One thread; one request under way on each connection. Any answer but a 2xx is an error."""
    with tempfile.TemporaryDirectory() as directory:
        script, head, bodies = (Path(directory, name) for name in ("script.lua", "head", "bodies"))
        script.write_text(WRK_SCRIPT)
        head.write_bytes(made.head)
        bodies.write_bytes(made.bodies)
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "20s", f"-s{script}"]
        command += [f"http://{address[0]}:{address[1]}/", "--", str(head), str(bodies), str(made.stride)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next((line for line in shown.splitlines() if line.startswith("JSON ")), None)
    if line is None:
        raise RuntimeError(f"wrk did not finish:\n{shown[-1000:]}")
    seen = json.loads(line.removeprefix("JSON "))
    if seen["failed"] or not seen["requests"]:
        raise RuntimeError(f"{seen['failed']} of {seen['requests']} requests failed:\n{shown[-1000:]}")
    return {
        "requests": seen["requests"],
        "per_second": seen["requests"] / seen["micros"] * 1e6,
        "p50_ms": seen["p50"] / 1e3,
        "p99_ms": seen["p99"] / 1e3,
        "longest_ms": seen["longest"] / 1e3,
    }


def h2load(address: Address, method: str, body: bytes, requests: int, clients: int, streams: int) -> dict[str, float]:
    """One gRPC method with one body again and again; `streams` under way on each of the connections."""
    with tempfile.TemporaryDirectory() as directory:
        sent = Path(directory, "body")
        sent.write_bytes(body)
        command = ["h2load", f"-n{requests}", f"-c{clients}", f"-m{streams}", "-t1", f"-d{sent}"]
        command += ["-Hcontent-type: application/grpc", "-Hte: trailers"]
        command += [f"http://{address[0]}:{address[1]}/{method}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finished = re.search(r"finished in ([\d.]+)(us|ms|s|m|h), ([\d.]+) req/s", shown)
    succeeded = re.search(r"(\d+) succeeded", shown)
    content = re.search(r"\((\d+)\) data", shown)
    if not finished or not succeeded or not content or int(succeeded[1]) != requests:
        raise RuntimeError(f"h2load: not all requests succeeded:\n{shown[-1000:]}")
    return {
        "requests": requests,
        "per_second": float(finished[3]),
        "answered_bytes": int(content[1]) / requests,
    }


def grpc_frame(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
