"""What the finalizer says of what it found."""

from __future__ import annotations

import pytest

from orchestrator.verdict import Candidate, Verdict, gain


def verdict(heads: float, alone: float | None, std: float, *, dev: bool = False) -> Verdict:
    def candidate(score: float) -> Candidate:
        held = (None, None) if dev else (score, std)
        # Under heldout the selection score tells the opposite, and must not be looked at.
        select = score if dev else 1 - score
        return Candidate("x", "run", select, held[0], None, std, held[1])

    base = None if alone is None else candidate(alone)
    best = candidate(heads)
    return Verdict(base, [best], best, None, None, helps=False, compared_on="held-out")


@pytest.mark.parametrize("dev", [False, True])
def test_a_gain_within_the_spread_of_the_seeds_is_not_called_sure(dev: bool) -> None:
    clear = gain(verdict(0.80, 0.70, 0.02, dev=dev))
    assert clear == "One head against the classifier alone, mean of seeds: +10.00 points."
    # Two spreads of 3 and 3 points make one of 4.24 points between them.
    unclear = gain(verdict(0.74, 0.70, 0.03, dev=dev))
    assert "+4.00 points, but seeds differ by more (4.24)" in unclear
    assert "brings nothing here" in gain(verdict(0.60, 0.70, 0.0, dev=dev))
    assert gain(verdict(0.7425, 0.70, 0.03, dev=dev)).endswith("+4.25 points.")


def test_nothing_is_said_where_the_classifier_alone_was_not_trained() -> None:
    assert gain(verdict(0.80, None, 0.02)) == ""
