"""What `holdfast up` says while it runs: lines for a person, or one JSON object a line for a program."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from coordinator.devcluster import Layout
from coordinator.events import fields_text

LAST_LINES = 15
_COLOURS = (36, 33, 35, 32, 34)
_HIDDEN_FIELDS = ("time", "level", "node", "event")


class ForPerson:
    """The nodes' logs as readable lines, each node in its colour on a terminal."""

    def __init__(self) -> None:
        self._last: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=LAST_LINES))

    def starting(self, layout: Layout) -> None:
        _say(f"starting {layout.nodes} node(s), data in {layout.directory}")

    def line(self, node_id: str, line: str) -> None:
        shown = readable(line)
        self._last[node_id].append(shown)
        _say(f"{_prefix(node_id)} {shown}")

    def up(self, layout: Layout, cluster: dict[str, Any], pids: dict[str, int]) -> None:
        leader = cluster["leader"]
        first = layout.http("n1")
        endpoint = "" if first == "127.0.0.1:7101" else f" --endpoint {first}"
        lines = [f"\nThe cluster is up; {leader} leads it in term {cluster['term']}.\n"]
        for node_id in layout.ids:
            addresses = f"http://{layout.http(node_id)}  peers {layout.peer(node_id)}"
            lines.append(f"  {node_id}  {addresses}  pid {pids[node_id]}{'  leader' if node_id == leader else ''}")
        if layout.grpc_base is not None:
            lines.append(f"  gRPC at {', '.join(str(layout.grpc(node_id)) for node_id in layout.ids)}")
        lines += [
            f"  dashboard at http://{first}/ui/",
            "\nTry, in another terminal:\n",
            f"  curl http://{first}/api/v1/locks/acquire "
            """-d '{"lock_key": "hello", "client_id": "me", "lease_time_ms": 30000}'""",
            f"  {shlex.quote(sys.argv[0])} status{endpoint}",
            f"  kill -9 {pids[leader]}    # the leader"
            + ("; watch the others choose a new one" if len(pids) > 1 else ""),
            "\nCtrl-C stops it. What the nodes report:\n",
        ]
        _say("\n".join(lines))

    def node_ended(self, node_id: str, code: int, config: Path) -> None:
        prefix, name = _prefix(node_id), _signal_name(code)
        how = f"was killed by {name}" if name else f"ended with code {code}"
        again = shlex.join([sys.argv[0], "node", "--config", str(config)])
        lines = [f"{prefix} *** the process {how}; its last lines:"]
        lines += [f"{prefix}     {line}" for line in self._last[node_id]]
        _say("\n".join([*lines, f"{prefix} *** start it again with: {again}"]))

    def note(self, event: str, words: str, **fields: Any) -> None:
        _say(words)


class ForPrograms:
    """The nodes' events as they log them, between events of `holdfast up` itself, which have no `node` and `time`."""

    def starting(self, layout: Layout) -> None:
        _tell("starting", nodes=layout.nodes, data=str(layout.directory))

    def line(self, node_id: str, line: str) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and "event" in record:
            _say(line)
        else:
            _tell("output", node=node_id, line=line)

    def up(self, layout: Layout, cluster: dict[str, Any], pids: dict[str, int]) -> None:
        nodes = [
            {
                "id": node_id, "http": layout.http(node_id), "peer": layout.peer(node_id),
                "grpc": layout.grpc(node_id), "pid": pids[node_id],
            }
            for node_id in layout.ids
        ]  # fmt: skip
        _tell("up", leader=cluster["leader"], term=cluster["term"], nodes=nodes)

    def node_ended(self, node_id: str, code: int, config: Path) -> None:
        _tell("node_ended", node=node_id, exit_code=code, signal=_signal_name(code), config=str(config))

    def note(self, event: str, words: str, **fields: Any) -> None:
        _tell(event, message=words, **fields)


def readable(line: str) -> str:
    """`time event key=value …` of a JSON log line; any other line (a traceback) as it is."""
    try:
        record: dict[str, Any] = json.loads(line)
        level = "" if record["level"] in ("debug", "info") else f"{record['level'].upper()} "
        fields = {key: value for key, value in record.items() if key not in _HIDDEN_FIELDS}
        return f"{record['time'][11:23]} {level}{record['event']}{fields_text(fields)}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return line


def _signal_name(code: int) -> str | None:
    return signal.Signals(-code).name if code < 0 else None


def _prefix(node_id: str) -> str:
    colour = _COLOURS[(int(node_id[1:]) - 1) % len(_COLOURS)]
    return f"\x1b[{colour}m{node_id}\x1b[0m" if sys.stdout.isatty() else node_id


def _say(text: str) -> None:
    print(text, flush=True)


def _tell(event: str, **fields: Any) -> None:
    _say(json.dumps({"event": event, **fields}, ensure_ascii=False))
