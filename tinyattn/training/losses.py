"""Losses of rows, by the kind of their labels."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinyattn.batching.batches import Batches
from tinyattn.data.labels import TEMPERATURE
from tinyattn.tasks import Task


def row_losses(outputs: Tensor, labels: Tensor | None) -> Tensor:
    """Return the loss of each row, [B]: squared error if labels are floats, else cross-entropy.

    Where rows have any number of labels it is the mean over labels of the binary cross-entropy.

    Of soft labels it is the Kullback-Leibler divergence from them, at their temperature and with
    its square as a factor (Hinton et al., 2015).

    Args:
        outputs: logits [B, num_outputs], of rows or of words.
        labels: [B] class ids (int64) or scores (float32), or [B, num_outputs] soft labels (float32)
            or 0 and 1 of each label (int8); None: `outputs` are log-probabilities of texts, whose
            negative is the cross-entropy summed over their tokens.
    """
    if labels is None:
        return -outputs.squeeze(-1)
    if labels.ndim == 2 and not labels.is_floating_point():
        each = F.binary_cross_entropy_with_logits(
            outputs, labels.to(outputs.dtype), reduction="none"
        )
        return each.mean(dim=1)
    if labels.ndim == 2:
        logs = F.log_softmax(outputs / TEMPERATURE, dim=1)
        return F.kl_div(logs, labels, reduction="none").sum(dim=1) * TEMPERATURE**2
    if labels.is_floating_point():
        return F.mse_loss(outputs.squeeze(-1), labels, reduction="none")
    return F.cross_entropy(outputs, labels, reduction="none")


def loss_terms(task: Task, rows: Batches, indices: np.ndarray) -> int:
    """Return how many terms the loss of some rows has, over which it is averaged.

    A row is one; of a text each token is one, as with `labels` of transformers' causal LMs, and
    where words have labels each word.

    Args:
        task: the rows' task.
        rows: all rows of the split.
        indices: the rows that are meant.
    """
    if task.tagging:
        return max(1, len(rows.outputs_of(indices)))
    if task.generation is None:
        return len(indices)
    assert rows.targets is not None
    return int(rows.targets[indices].sum())


def mean_loss(task: Task, outputs: np.ndarray, rows: Batches) -> float:
    """Return the mean loss of labelled rows, over their `loss_terms`.

    Args:
        task: the rows' task.
        outputs: the model's, of all rows: logits, or of generation log-probabilities of texts.
        rows: the rows.
    """
    every, labels = np.arange(len(rows)), None
    if task.generation is None:
        labels = torch.tensor(rows.labels_of(every))
        labels = labels.double() if labels.is_floating_point() else labels
    total = float(row_losses(torch.tensor(outputs, dtype=torch.float64), labels).sum())
    return total / loss_terms(task, rows, every)
