"""The public API passes mypy --strict in a user's program, and that program leaves out nothing that is offered."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from collections import defaultdict
from functools import cached_property
from pathlib import Path

import coordinator.client
from coordinator.client.queues import Queues
from coordinator.client.resources import Resources
from tests.cli.processes import REPOSITORY

PROGRAMS = sorted(Path(__file__).parent.glob("whole_api*.py"))
REACHED = {"Resources": Resources, "Queues": Queues}
"""Not in `__all__`: what attributes of the client are."""

NOT_FOR_CALLERS = {
    "Client": {"call_acquire", "call_release", "call_renew"},
    "Held": {"in_doubt_at", "keep", "let_go", "next_renewal"},
    "Lease": {"lose"},
    "Lock": {"give_back"},
    "Session": {
        "beat", "confirm", "doubt", "drop", "forget", "in_doubt_at", "last_s", "lose", "off_doubt", "on_doubt",
        "release_lock", "renew", "stands", "take",
    },
    "SessionHeld": {"end_turn", "lose", "on_doubt", "why"},
    "StallDetector": {"add", "remove", "tick"},
    "Task": {"confirm", "stop_at"},
}  # fmt: skip
"""Methods by which the modules of the SDK talk to each other. They are no part of what is promised to users."""


def offered(kind: type) -> set[str]:
    """The public members that are declared: methods, properties, fields."""
    names: set[str] = set()
    for each in kind.__mro__:
        if each.__module__.startswith("coordinator."):
            members = {name for name, value in vars(each).items() if _is_member(value)}
            names |= {name for name in members if not name.startswith("_")}
    if dataclasses.is_dataclass(kind):
        names |= {field.name for field in dataclasses.fields(kind) if not field.name.startswith("_")}
    return names


def _is_member(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | cached_property | staticmethod | classmethod)


def used() -> tuple[set[str], dict[str, set[str]]]:
    """The names imported from the SDK and used, and which members of each type are used on an argument of that type."""
    names: set[str] = set()
    members: dict[str, set[str]] = defaultdict(set)
    for program in PROGRAMS:
        tree = ast.parse(program.read_text())
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                _used_in(function, members)
    return names, members


def _used_in(function: ast.FunctionDef | ast.AsyncFunctionDef, members: dict[str, set[str]]) -> None:
    types = {each.arg: each.annotation.id for each in function.args.args if isinstance(each.annotation, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in types:
            members[types[node.value.id]].add(node.attr)


def test_every_public_name_is_used() -> None:
    names, _ = used()
    missing = sorted(set(coordinator.client.__all__) - names)
    assert not missing, f"use these of coordinator.client.__all__ in {PROGRAMS[0]}: {', '.join(missing)}"


def test_every_public_member_is_used() -> None:
    _, members = used()
    kinds = {name: getattr(coordinator.client, name) for name in coordinator.client.__all__} | REACHED
    missing = []
    for name, kind in sorted(kinds.items()):
        if inspect.isclass(kind):
            left = offered(kind) - members[name] - NOT_FOR_CALLERS.get(name, set())
            missing += [f"{name}.{member}" for member in sorted(left)]
    assert not missing, (
        f"use these in a function of {PROGRAMS[0].parent} with an argument of that type: {', '.join(missing)}"
    )


def test_the_blocking_client_has_the_same_names() -> None:
    """Of every class that it has in its own way, all that is offered to callers."""
    kinds = {name: getattr(coordinator.client, name) for name in coordinator.client.__all__} | REACHED
    for name, kind in kinds.items():
        if (waiting := kinds.get(f"Sync{name}")) is not None:
            has = offered(waiting) | set(re.findall(r"self\.(\w+)", inspect.getsource(waiting.__init__)))
            missing = offered(kind) - has - NOT_FOR_CALLERS.get(name, set())
            assert not missing, f"Sync{name} has no {', '.join(sorted(missing))}"


def test_what_is_not_for_callers_exists() -> None:
    for name, members in NOT_FOR_CALLERS.items():
        gone = members - offered(getattr(coordinator.client, name))
        assert not gone, f"{name} has no {', '.join(sorted(gone))} any more; remove it from the list"


def test_everything_exported_is_listed_once_and_in_order() -> None:
    names = coordinator.client.__all__
    assert names == sorted(set(names), key=lambda name: (name[0].islower(), name))


def test_the_tree_of_exceptions_in_the_docstring_is_the_one_there_is() -> None:
    kinds = {name: getattr(coordinator.client, name) for name in coordinator.client.__all__}
    errors = {name: kind for name, kind in kinds.items() if inspect.isclass(kind) and issubclass(kind, BaseException)}
    above: dict[int, str] = {-1: "Exception"}
    drawn: dict[str, str] = {}
    for line in (coordinator.client.__doc__ or "").splitlines():
        name = re.match(r"([│├└─ ]*)([A-Z]\w+)(?:  |$)", line)
        if name:
            depth = len(name[1]) // 4
            drawn[name[2]], above[depth] = above[depth - 1], name[2]
    assert drawn == {name: kind.__base__.__name__ for name, kind in errors.items()}


def test_mypy_strict_accepts_it() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, PROGRAMS)],
        capture_output=True, text=True, timeout=200, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    own = [line for line in checked.stdout.splitlines() if "whole_api" in line]
    assert not own, "\n".join(own)
    assert checked.returncode in (0, 1), checked.stdout + checked.stderr


def test_mypy_would_find_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "whole_api_wrong.py"
    wrong.write_text(
        "from coordinator.client import Held, SyncClient\n\n\n"
        "def uses(held: Held) -> str:\n    return held.token\n\n\n"
        "def waits(client: SyncClient) -> str:\n    return client.open_session().valid_for\n\n\n"
        "def misspells(client: SyncClient) -> None:\n    client.open_sesion()\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(wrong)],
        capture_output=True, text=True, timeout=200, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    assert checked.stdout.count("Incompatible return value type") == 2
    assert 'no attribute "open_sesion"' in checked.stdout
