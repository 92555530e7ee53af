"""Budgets, docstrings, and names that have no place: small rules that keep every room findable."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable

import pytest

from tests.meta.sources import REPOSITORY, Source, planted, refuse, sources
from tests.meta.test_layers import LAYERS, part_of

FILE_LINES = 400
FUNCTION_LINES = 50

PRINTERS = ("coordinator/cli/", "coordinator/devcluster.py")
"""They talk to a person on standard output. Everything else logs events."""

SLEEPERS = {
    "tests/waiting.py": "polls for a condition with a deadline; every other test waits through it",
    "tests/processes/fleet.py": "the asyncio form of the same: asks a real process until a deadline",
    "tests/processes/writers.py": "a writer whose node is down does not spin while it comes back",
}
"""Tests in which real time passes on purpose, each with its reason. `asyncio.sleep(0)` is no sleep."""

PICKLES = {"pickle", "cPickle", "_pickle", "shelve", "marshal", "dill", "cloudpickle", "jsonpickle", "joblib"}
ASK_THE_MACHINE = ("coordinator/http/", "coordinator/service.py", "coordinator/sweeper.py")
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "misc", "common", "data"}


def over_budget(checked: Iterable[Source]) -> list[str]:
    findings = []
    for source in checked:
        lines = source.text.count("\n")
        if lines > FILE_LINES:
            findings.append(f"{source.name}: {lines} lines, the budget is {FILE_LINES}; split it by noun")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    findings.append(
                        f"{source.name}:{node.lineno}: {node.name} has {length} lines, not {FUNCTION_LINES}"
                    )
    return findings


def undocumented(checked: Iterable[Source]) -> list[str]:
    return [f"{source.name}: no module docstring" for source in checked if not ast.get_docstring(source.tree)]


def calls(source: Source, *names: str) -> list[ast.Call]:
    """Calls of any of `names`, written as they are called: `print`, `time.sleep`."""
    found = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    return [node for node in found if ast.unparse(node.func) in names]


def prints(checked: Iterable[Source]) -> list[str]:
    return [
        f"{source.name}:{call.lineno}: print outside the command line; log an event"
        for source in checked
        if not source.name.startswith(PRINTERS)
        for call in calls(source, "print")
    ]


def behind_the_door(checked: Iterable[Source]) -> list[str]:
    """How the replicated state lies is the machine's own business: interfaces and the sweep ask `Machine`."""
    return [
        f"{source.name}:{node.lineno}: reads machine.state; give Machine a method for what is asked"
        for source in checked
        if source.name.startswith(ASK_THE_MACHINE)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and node.attr == "state" and ast.unparse(node.value).endswith("machine")
    ]


def sleeps(checked: Iterable[Source]) -> list[str]:
    findings = []
    for source in checked:
        if source.name in SLEEPERS:
            continue
        renamed = [
            node.lineno
            for node in ast.walk(source.tree)
            if isinstance(node, ast.ImportFrom)
            and node.module in ("time", "asyncio")
            and any(alias.name == "sleep" for alias in node.names)
        ]
        slept = [
            call.lineno
            for call in calls(source, "time.sleep", "asyncio.sleep")
            if not (call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0)
        ]
        findings += [f"{source.name}:{line}: a test that sleeps; use tests.waiting" for line in renamed + slept]
    return findings


def pickles(checked: Iterable[Source]) -> list[str]:
    findings = []
    for source in checked:
        for node in ast.walk(source.tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            findings += [f"{source.name}: imports {name}" for name in names if name.partition(".")[0] in PICKLES]
    return findings


def asserts(checked: Iterable[Source]) -> list[str]:
    return [
        f"{source.name}:{node.lineno}: bare assert; a broken invariant must stop the node also under -O"
        for source in checked
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assert)
    ]


def vague(checked: Iterable[Source]) -> list[str]:
    return [f"{s.name}: name it by its noun" for s in checked if VAGUE_NAMES & set(s.module.split("."))]


PRODUCT = ("coordinator", "cluster")


def test_files_and_functions_stay_in_budget() -> None:
    refuse(over_budget(sources(*PRODUCT)))


def test_every_module_says_what_lives_there() -> None:
    refuse(undocumented(source for source in sources(*PRODUCT, "tests") if source.text.strip()))


def test_only_the_command_line_prints() -> None:
    refuse(prints(sources(*PRODUCT)))


def test_the_state_is_read_through_the_machine() -> None:
    refuse(behind_the_door(sources("coordinator")))


def test_no_test_sleeps() -> None:
    refuse(sleeps(sources("tests")))


def test_nothing_is_pickled() -> None:
    refuse(pickles(sources(*PRODUCT)))


def test_no_bare_asserts() -> None:
    refuse(asserts(sources(*PRODUCT)))


def test_names_are_nouns_of_the_domain() -> None:
    refuse(vague(sources(*PRODUCT, "tests")))


@pytest.mark.timeout(320)
def test_every_module_imports_on_its_own() -> None:
    """Each in an interpreter that has imported no other of its layer, nor of a higher one.

    Forked from one that has the libraries and all lower layers: these cannot import it (tests/meta/test_layers.py).
    """
    program = """
import importlib, json, os, sys, traceback
import aiohttp.web, cryptography.x509, google.protobuf, grpc.aio, prometheus_client
import msgpack, numpy, pysyncobj, sortedcontainers, sqlalchemy, uvloop

def imports(module):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            importlib.import_module(module)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0

failed = []
for layer in json.load(sys.stdin):
    failed += [module for module in layer if not imports(module)]
    if failed:
        break
    for module in layer:
        if not module.endswith("__main__"):
            importlib.import_module(module)
print(json.dumps(failed))
"""
    layers: list[list[str]] = [[] for _ in range(len(LAYERS) + 1)]
    for source in sources(*PRODUCT):
        part = part_of(source.module)
        layers[0 if part is None else part[0] + 1].append(source.module)
    command = [sys.executable, "-W", "error", "-c", program]
    run = subprocess.run(
        command, cwd=REPOSITORY, input=json.dumps(layers), capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [], run.stderr


def test_planted_breaches_are_found() -> None:
    long_function = "def f():\n" + "    x = 1\n" * FUNCTION_LINES
    assert over_budget([planted("cluster/x.py", long_function)])
    assert over_budget([planted("cluster/x.py", "x = 1\n" * (FILE_LINES + 1))])
    assert undocumented([planted("cluster/x.py", "x = 1")])
    assert prints([planted("cluster/x.py", "print(1)")])
    for text in ("import time\ntime.sleep(1)", "await asyncio.sleep(0.1)", "from time import sleep"):
        assert sleeps([planted("tests/test_x.py", f"async def f():\n  {text.splitlines()[-1]}")]), text
    assert not sleeps([planted("tests/test_x.py", "async def f():\n  await asyncio.sleep(0)")])
    for text in ("import pickle", "from pickle import loads", "def f():\n  import marshal"):
        assert pickles([planted("cluster/x.py", text)])
    assert behind_the_door([planted("coordinator/http/x.py", "x = call.service.machine.state.locks")])
    assert not behind_the_door([planted("coordinator/machine/machine.py", "x = machine.state.locks")])
    assert asserts([planted("cluster/x.py", "assert x")])
    assert vague([planted("cluster/utils.py", "")])
