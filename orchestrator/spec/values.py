"""Types of values: of hyper-parameters, and of what JSON or YAML holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Scalar: TypeAlias = bool | int | float | str | None
Value: TypeAlias = Scalar | Sequence[Scalar]
"""A hyper-parameter's value: a number, a word, true, false, null, or a list of these."""
Point: TypeAlias = Mapping[str, Value]
"""Values for dotted keys, as in `{"optimizer.lr": 6.8e-4}`."""
Json: TypeAlias = Scalar | Sequence["Json"] | Mapping[str, "Json"]
"""What can be written as JSON."""
