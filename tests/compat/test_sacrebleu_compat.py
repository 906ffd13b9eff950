"""What tinyattn reads of sacrebleu's chrF are the counts that its own score comes from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sacrebleu.metrics import CHRF

from tinyattn.compat.sacrebleu_compat import chrf_of, chrf_statistics

TEXTS = ["a pub by the river", "ab", ""]
REFERENCES = [["there is a pub at the river", "a pub", "pubs"], ["abc"], ["x", "y"]]


def counts(text: str, reference: str) -> list[int]:
    """Characters in a row of the text, of the reference and of both; blanks do not count."""
    found = []
    for order in range(1, 7):
        ours, theirs = (
            Counter(word[i : i + order] for i in range(len(word) - order + 1))
            for word in (text.replace(" ", ""), reference.replace(" ", ""))
        )
        # Of an order that the reference is too short for, sacrebleu counts nothing in the text.
        found += [ours.total() if theirs else 0, theirs.total(), (ours & theirs).total()]
    return found


def test_rows_have_counts_of_the_best_reference() -> None:
    rows = chrf_statistics(TEXTS, REFERENCES)
    assert rows[0] == counts(TEXTS[0], REFERENCES[0][1])
    assert rows[1] == counts(TEXTS[1], REFERENCES[1][0])
    assert rows[2] == counts("", "x")
    assert chrf_statistics([], []) == []


@pytest.mark.parametrize("rows", [[0, 1, 2], [1, 1, 0]], ids=str)
def test_the_score_of_sums_is_that_of_the_texts(rows: list[int]) -> None:
    sums = np.array(chrf_statistics(TEXTS, REFERENCES), float)[rows].sum(axis=0)
    columns = [[dict(enumerate(REFERENCES[row])).get(i) for row in rows] for i in range(3)]
    whole = CHRF().corpus_score([TEXTS[row] for row in rows], columns).score
    assert chrf_of(sums) == pytest.approx(whole / 100)
    assert 0.1 < whole / 100 < 0.9
