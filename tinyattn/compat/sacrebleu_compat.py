"""What is used of sacrebleu beyond its documented interface, all of it in this file.

Its chrF gives a score and not the counts that it comes from, which BLEU gives. They are needed for
scores of many samples of the same rows. tests/compat/test_sacrebleu_compat.py fails where sacrebleu
changes them. (sacrebleu 2.4 to 2.6)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def _chrf() -> Any:
    from sacrebleu.metrics import CHRF

    return CHRF()


def chrf_statistics(texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return each row's counts for chrF2: for 1 to 6 characters those of the text, of its best
    reference, and matched ones, 18 numbers.

    Args:
        texts: N texts.
        references: N lists of references, each of at least one.
    """
    most = max(map(len, references), default=0)
    # Of a row's missing references, None stands for each.
    columns = [[own[i] if i < len(own) else None for own in references] for i in range(most)]
    return _chrf()._extract_corpus_statistics(texts, columns) if columns else []


def chrf_of(sums: np.ndarray) -> float:
    """Return chrF2, from 0 to 1, from sums of the counts of rows, [18]."""
    return _chrf()._compute_score_from_stats(sums.tolist()).score / 100
