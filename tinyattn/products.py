"""The PLM's matrix products where several trials share a pass on a CPU.

A row's product with a weight should not depend on the other rows. Its last bits do: the library
chooses by the number of rows in which order it adds up many terms (seen in bf16 on processors with
AMX, and in fp32 with two threads). So the rows of each trial are multiplied by themselves where
there are many terms. Then a trial computes the same, to the bit, whoever its neighbours are.

Shape suffixes: N tokens of the stream, I and O inputs and outputs of a product.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

MOST_TERMS = 384
"""Products of so many terms have the same bits whatever the number of rows, from LEAST_TOKENS of
`stream` on; of 512 they have not. Measured with oneDNN and MKL of torch 2.13."""


@contextlib.contextmanager
def apart(plm: PreTrainedModel, tokens: Sequence[int]) -> Iterator[None]:
    """Within the block the PLM's products take each trial's rows by themselves, where it matters.

    Args:
        plm: frozen.
        tokens: of each trial, in their order in the stream.
    """
    rounds = torch.finfo(plm.dtype).bits < 32 or torch.get_num_threads() > 1
    matters = len(tokens) > 1 and plm.device.type == "cpu" and rounds and torch.is_grad_enabled()
    found = [module for module in plm.modules() if matters and _has_many_terms(module)]
    for module in found:
        module.forward = functools.partial(_run, module, tokens)
    try:
        yield
    finally:
        for module in found:
            del module.forward


def _has_many_terms(module: nn.Module) -> bool:
    """Whether a product has, forward or backward; Conv1D is GPT-2's."""
    return isinstance(module, nn.Linear | Conv1D) and max(module.weight.shape) > MOST_TERMS


def _run(module: Any, tokens: Sequence[int], x: Tensor) -> Tensor:
    """In the place of a module's own forward; a pooler takes other inputs than all tokens."""
    weight = module.weight if isinstance(module, nn.Linear) else module.weight.t()
    if x.ndim < 2 or x.shape[-2] != sum(tokens):
        return F.linear(x, weight, module.bias)
    found: Tensor = _Product.apply(x, weight, module.bias, tokens)
    return found


class _Product(torch.autograd.Function):
    """x Wᵀ + b for a frozen W [O, I]: I terms forward, O terms backward."""

    @staticmethod
    def forward(
        ctx: Any, x_NI: Tensor, weight: Tensor, bias: Tensor | None, tokens: Sequence[int]
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.tokens = tokens
        return _by_trial(x_NI, weight, bias, tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        return _by_trial(gradients[0], weight.t(), None, ctx.tokens), None, None, None


def _by_trial(x: Tensor, weight: Tensor, bias: Tensor | None, tokens: Sequence[int]) -> Tensor:
    if x.shape[-1] <= MOST_TERMS:
        return F.linear(x, weight, bias)
    own = x.flatten(0, -2).split(list(tokens))  # of a slice of [1, N, I] the bits are others
    return torch.cat([F.linear(part, weight, bias) for part in own]).unflatten(0, x.shape[:-1])
