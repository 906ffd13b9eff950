"""Matrix products of the PLM, in passes that trials share on a CPU, reproducible to the bit.

The product of a row with a weight should not depend on the other rows, but its last bits do: by the
number of rows the library chooses the order in which it adds up many terms (seen in bf16 on
processors with AMX, and in fp32 with two threads). So where there are many terms, each trial's rows
are multiplied separately, and a trial's results are the same whatever trials share its passes.

Shape suffixes: N tokens of the stream, I and O inputs and outputs of a product.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from tinyattn.plms.quantized import QuantizedLinear
from tinyattn.plms.transformers_compat import product_weight

MOST_TERMS = 384
"""Products of up to this many terms have the same bits for every number of rows from LEAST_TOKENS
(`batching/packed_sequence.py`) on; those of 512 do not. Measured with torch 2.13's oneDNN, MKL."""


@contextlib.contextmanager
def apart(plm: PreTrainedModel, tokens: Sequence[int]) -> Iterator[None]:
    """Within the block the PLM multiplies each trial's rows separately, where terms are many.

    Args:
        plm: a frozen PLM.
        tokens: number of tokens of each trial, in their order in the packed sequence.
    """
    rounds = torch.finfo(plm.dtype).bits < 32 or torch.get_num_threads() > 1
    matters = len(tokens) > 1 and plm.device.type == "cpu" and rounds and torch.is_grad_enabled()
    found = [module for module in plm.modules() if matters and _has_many_terms(module)]
    for module in found:
        module.forward = partial(_run, module, tokens)
    try:
        yield
    finally:
        for module in found:
            del module.forward


def _has_many_terms(module: nn.Module) -> bool:
    """Whether a module is a product of many terms, forward or backward."""
    if isinstance(module, QuantizedLinear):  # whose weight takes time to read
        return max(module.in_features, module.out_features) > MOST_TERMS
    weight = product_weight(module)
    return weight is not None and max(weight.shape) > MOST_TERMS


def _run(module: Any, tokens: Sequence[int], x: Tensor) -> Tensor:
    """Run a product, separately by trial if its input is all tokens (a pooler's is not)."""
    together = x.ndim < 2 or x.shape[-2] != sum(tokens)
    if isinstance(module, QuantizedLinear):
        return module.product(x, F.linear if together else partial(_by_trial, tokens=tokens))
    weight = product_weight(module)
    assert weight is not None
    if together:
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
        return _by_trial(x_NI, weight, bias, tokens=tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        return _by_trial(gradients[0], weight.t(), tokens=ctx.tokens), None, None, None


def _by_trial(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, tokens: Sequence[int]
) -> Tensor:
    if x.shape[-1] <= MOST_TERMS:
        return F.linear(x, weight, bias)
    own = x.flatten(0, -2).split(list(tokens))  # of a slice of [1, N, I] the bits are others
    return torch.cat([F.linear(part, weight, bias) for part in own]).unflatten(0, x.shape[:-1])
