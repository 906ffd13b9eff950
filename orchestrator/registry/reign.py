"""A champion's reign, and its budget for challengers that would win by luck.

An equal newcomer passes a test by luck with a probability equal to the test's level; one of many
newcomers would dethrone a champion sooner or later. A reign has a budget of 0.10 in all: its first
challenge is tested at level 0.05, the k-th at 0.05 / (k (k − 1)), and these levels add up to 0.10,
however many there are (alpha spending by Bonferroni's inequality, which needs no independence). A
move of the alias begins a new reign, and new held-out rows have a new budget. While no version
holds the alias, the classifier alone reigns, as version 0.

A challenge is a tag of the registered model. It is written before the outcome is known, so that it
counts even if the process dies after it. Its number is the number of tags once its own is written,
so that two challenges at once get no better levels than two in turn. The same run on the same rows
is the same challenge: it finds its tag, with number and result.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from orchestrator.selection.significance import PairedTest
from orchestrator.tracking.reader import TAG, TrackingReader

BUDGET = 0.10
"""Largest probability that an equal newcomer moves the alias within a whole reign."""
FIRST = 0.05
"""Level of a reign's first challenge."""
VACANT = 0
"""Stands for a version while no version holds the alias: the classifier alone reigns."""
_PREFIX = TAG + "challenge."


@dataclass(frozen=True)
class Challenge:
    """One test of a newcomer against the champion."""

    key: str
    """Its tag."""
    number: int
    """1 for the first of the reign."""
    test: PairedTest | None = None
    """What an earlier call found; None: it is to be made."""

    @property
    def level(self) -> float:
        """What p may be at most."""
        return level(self.number)


def level(number: int) -> float:
    """Return the level of the number-th challenge of a reign."""
    return FIRST if number == 1 else FIRST / (number * (number - 1))


def left(number: int) -> float:
    """Return what is left of a reign's budget after a number of challenges."""
    return BUDGET if number == 0 else FIRST / number


def budget_words(challenge: Challenge, moved: bool) -> str:
    """Return the message on a reign's budget after a challenge."""
    which = f"challenge {challenge.number} of this reign"
    if challenge.test is not None:
        which += ", made before on the same rows: its result stands and costs nothing again"
    at = f"{which}; its level was {challenge.level:.2g}"
    if moved:
        return f"{at}. A new reign begins, with its whole budget of {BUDGET:.2f}"
    return f"{at}, {left(challenge.number):.2g} of the budget of {BUDGET:.2f} is left"


def enter(store: TrackingReader, model: str, champion: int, rows: str, run_id: str) -> Challenge:
    """Count a run's challenge, or return the one that it has made already.

    Args:
        store: the MLflow store.
        model: name of the registered model.
        champion: version that holds the alias, or VACANT.
        rows: fingerprint of the held-out rows.
        run_id: the challenger.
    """
    reign = f"{_PREFIX}{champion}.{rows}."
    key = reign + run_id
    known = _tags(store, model, reign)
    if key not in known:
        store.client.set_registered_model_tag(model, key, "{}")
        known = _tags(store, model, reign)
    noted = json.loads(known[key])
    challenge = Challenge(key, noted.get("number", len(known)))
    if "number" not in noted:
        _write(store, model, challenge)
    test = PairedTest(**noted["test"]) if "test" in noted else None
    return replace(challenge, test=test)


def record(store: TrackingReader, model: str, challenge: Challenge, test: PairedTest) -> None:
    """Keep the result of a challenge beside its number."""
    _write(store, model, replace(challenge, test=test))


def renew(store: TrackingReader, model: str, champion: int) -> None:
    """Forget the challenges of a version's earlier reign."""
    for key in _tags(store, model, f"{_PREFIX}{champion}."):
        store.client.delete_registered_model_tag(model, key)


def _tags(store: TrackingReader, model: str, prefix: str) -> dict[str, str]:
    tags = store.client.get_registered_model(model).tags
    return {key: value for key, value in tags.items() if key.startswith(prefix)}


def _write(store: TrackingReader, model: str, challenge: Challenge) -> None:
    noted: dict[str, object] = {"number": challenge.number}
    if challenge.test is not None:
        noted["test"] = asdict(challenge.test)
    store.client.set_registered_model_tag(model, challenge.key, json.dumps(noted))
