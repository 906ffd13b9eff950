"""Tasks whose rows have any number of labels: thresholds of labels, and metrics of sets of labels.

A label has an output of its own, and a row has it where the output's probability reaches the
label's threshold. What metrics are computed of are *margins*: the outputs (log odds) less the log
odds of the thresholds, so a row has the labels whose margin is not negative, and rows are ranked by
margins as by outputs.
"""

from tinyattn.tasks.multilabel.metrics import (
    LABEL_METRICS,
    MAP,
    MULTILABEL_METRICS,
    LabelMetric,
    mean_average_precision,
)
from tinyattn.tasks.multilabel.thresholds import (
    SEPARATORS,
    Multilabel,
    best_thresholds,
    log_odds,
    margins,
)

__all__ = [
    "LABEL_METRICS",
    "MAP",
    "MULTILABEL_METRICS",
    "SEPARATORS",
    "LabelMetric",
    "Multilabel",
    "best_thresholds",
    "log_odds",
    "margins",
    "mean_average_precision",
]
