"""The machine must give the same bytes on every node: no clock, no chance, no floats, no order that Python chooses."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.meta.sources import Source, planted, refuse, sources

BANNED_NAMES = {
    "hash": "differs between processes",
    "id": "differs between processes",
    "float": "rounds differently from the integers the log has",
    "open": "is input or output",
    "print": "is input or output",
    "eval": "runs what was stored",
    "exec": "runs what was stored",
}
BANNED_MODULES = {"time", "random", "uuid", "secrets", "os", "datetime", "asyncio", "threading", "socket", "pickle"}
BANNED_ATTRIBUTES = {
    "random": "is chance",
    "now": "reads a clock",
    "true_divide": "makes floats",
    "mean": "makes floats",
    "float64": "makes floats",
    "float32": "makes floats",
}
SET_MAKERS = {"set", "frozenset"}


def breaches(checked: Iterable[Source]) -> list[str]:
    return [
        f"{source.name}:{line}: {why}"
        for source in checked
        for node in ast.walk(source.tree)
        for line, why in _why(node)
    ]


def _why(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if name in BANNED_NAMES:
            # `float` also in annotations: a float field is as bad as a float value.
            yield node.lineno, f"{name} {BANNED_NAMES[name]}"
        case ast.Name(id=name, ctx=ast.Load()) if name in BANNED_MODULES:
            yield node.lineno, f"the module {name} has no place here"
        case ast.Attribute(attr=name) if name in BANNED_ATTRIBUTES:
            yield node.lineno, f".{name} {BANNED_ATTRIBUTES[name]}"
        case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
            yield node.lineno, "/ makes a float; use //"
        case ast.Constant(value=float()):
            yield node.lineno, "a float constant"
        case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated) | ast.comprehension(iter=iterated):
            if _is_set(iterated):
                yield iterated.lineno, "the order of a set differs between processes; sort it"
        case ast.Call(func=ast.Name(id="list" | "tuple" | "iter" | "enumerate"), args=[first, *_]) if _is_set(first):
            yield node.lineno, "the order of a set differs between processes; sort it"


def _is_set(node: ast.AST) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in SET_MAKERS
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr() | ast.Sub() | ast.BitXor(), left=left, right=right):
            return _is_set(left) or _is_set(right)
        case _:
            return False


def test_the_machine_is_deterministic() -> None:
    refuse(breaches(sources("coordinator/machine")))


@pytest.mark.parametrize(
    "text",
    [
        "key = hash(name)",
        "x: float = 1",
        "x = 1.5",
        "half = n / 2",
        "n /= 2",
        "t = time.monotonic()",
        "r = numpy.random.default_rng()",
        "for x in set(names): pass",
        "for x in {1, 2}: pass",
        "y = [x for x in {a for a in b}]",
        "y = list(set(b))",
        "for x in set(a) - set(b): pass",
    ],
)
def test_planted_breaches_are_found(text: str) -> None:
    assert breaches([planted("coordinator/machine/x.py", text)])


@pytest.mark.parametrize(
    "text", ["for x in sorted(set(names)): pass", "n = m // 2", "ok = x in {1, 2}", "m = len(set(a))"]
)
def test_what_is_allowed_passes(text: str) -> None:
    assert breaches([planted("coordinator/machine/x.py", text)]) == []
