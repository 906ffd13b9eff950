"""How many signatures of the orchestrator say `Any`: a number that only goes down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 23
"""Signatures with `Any` that are left; whoever removes one lowers this number."""


def signatures_with_any(source: str) -> Iterator[str]:
    """Yield the names of the functions with `Any` in a parameter's or the result's annotation."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = node.args
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        annotations = [node.returns, *(one.annotation for one in parameters if one is not None)]
        parts = [part for one in annotations if one is not None for part in ast.walk(one)]
        if any(isinstance(part, ast.Name) and part.id == "Any" for part in parts):
            yield node.name


def test_no_more_signatures_say_any() -> None:
    """A signature names what comes and goes: `Any` switches the type checker off for its callers.

    A hyper-parameter's value is a `Value`, several by key are a `Point`, and what a file holds is
    `Json` (`orchestrator/spec/values.py`). An argument that is passed on or ignored is an `object`.
    What remains is rows of SQL, results and configs of Ray Tune, and dicts of an event log.
    """
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "orchestrator").rglob("*.py"))
        for name in signatures_with_any(path.read_text("utf-8"))
    ]
    assert len(found) <= MOST, "\n".join(found)


def test_what_counts_as_a_signature_with_any() -> None:
    source = """
def a(x: Any): ...
def b(*rest: dict[str, Any], y: int) -> int: ...
async def c() -> list[Any] | None: ...
def d(**rest: Any):
    x: Any = 0
    def e(x: object) -> int:
        y: Any = x
"""
    assert sorted(signatures_with_any(source)) == ["a", "b", "c", "d"]
