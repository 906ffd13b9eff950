"""A result under MLflow's names, and back: what `writer.py` logs and `reader.py` reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_type_hints

from orchestrator.spec.result import NAMES, Result

GROUPS = {"metrics": "select/", "heldout": "heldout/"}
"""{field of a result with metrics by name: prefix of theirs in MLflow}."""
_TYPES = get_type_hints(Result)
_WHOLE = [name for name in NAMES if _TYPES[name] == int | None]
_FLOATS = [name for name in NAMES if _TYPES[name] == float | None]


def metrics_of(result: Result) -> dict[str, float]:
    """Return the numbers of one evaluation under their MLflow names.

    Those of `metrics` become `select/<name>`, those of `heldout` become `heldout/<name>`.
    """
    found: dict[str, float] = {}
    for key, value in result.told():
        if isinstance(value, Mapping):
            found |= {f"{GROUPS[key]}{name}": float(number) for name, number in value.items()}
        elif isinstance(value, int | float):
            found[key] = float(value)
    # MLflow stores an infinity as the largest double, which reads as a real loss.
    return {key: math.nan if math.isinf(value) else value for key, value in found.items()}


def result_of(metrics: Mapping[str, float]) -> Result:
    """Return the latest metrics of a run as one result; a count that is no number is left out."""
    groups = {key: _group(metrics, prefix) for key, prefix in GROUPS.items()}
    whole = {key: int(metrics[key]) for key in _WHOLE if math.isfinite(metrics.get(key, math.nan))}
    said: dict[str, Any] = {
        **whole,
        **{key: metrics[key] for key in _FLOATS if key in metrics},
        **{key: numbers for key, numbers in groups.items() if numbers},
    }
    known = {*NAMES, *(f"{GROUPS[group]}{name}" for group in groups for name in groups[group])}
    return Result(
        evaluation=int(metrics.get("evaluation", 0)),
        score=metrics.get("score", math.nan),
        best_score=metrics.get("best_score", math.nan),
        **said,
        others={key: number for key, number in metrics.items() if key not in known},
    )


def _group(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return the metrics under a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
