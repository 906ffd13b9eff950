"""Losses of training rows, by the kind of their labels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from tinyattn.data.labels import TEMPERATURE


def row_losses(outputs: Tensor, labels: Tensor | None) -> Tensor:
    """Return the loss of each row, [B]: squared error if labels are floats, else cross-entropy.

    Of soft labels it is the Kullback-Leibler divergence from them, at their temperature and with
    its square as a factor (Hinton et al., 2015).

    Args:
        outputs: logits [B, num_outputs], of rows or of words.
        labels: [B] class ids (int64) or scores (float32), or [B, num_outputs] soft labels; None:
            `outputs` are log-probabilities of texts, whose negative is the cross-entropy summed
            over their tokens.
    """
    if labels is None:
        return -outputs.squeeze(-1)
    if labels.ndim == 2:
        logs = F.log_softmax(outputs / TEMPERATURE, dim=1)
        return F.kl_div(logs, labels, reduction="none").sum(dim=1) * TEMPERATURE**2
    if labels.is_floating_point():
        return F.mse_loss(outputs.squeeze(-1), labels, reduction="none")
    return F.cross_entropy(outputs, labels, reduction="none")
