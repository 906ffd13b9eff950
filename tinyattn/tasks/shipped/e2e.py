"""The built-in task `e2e`: descriptions of restaurants, generated from their attributes.

Novikova, Dušek & Rieser, "The E2E Dataset: New Challenges For End-to-End Generation", SIGDIAL 2017.
Data folders hold it as e2e/train.jsonl.gz and e2e/validation.jsonl.gz, with the columns of the
published files, a row for each text; several texts say the same in other words.
"""

from __future__ import annotations

from tinyattn.tasks.base import Task
from tinyattn.tasks.sequences import Generation, Template

E2E = Task(
    name="e2e",
    text_columns=("meaning_representation",),
    labels=None,
    score_range=None,
    # The official script's metrics also are METEOR and CIDEr.
    metrics=("bleu", "nist", "rouge_l", "chrf"),
    label_column="human_reference",
    # `||` ends the table as in Li & Liang (ACL 2021) and Hu et al. (ICLR 2022); they also rewrite
    # `name[x], eatType[y]` as `name : x | Type : y`, and here it stays as published.
    generation=Generation(Template("{meaning_representation} ||"), length=96),
    place="e2e",
)
