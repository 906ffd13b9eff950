"""AdaMix: a mixture of bottlenecks, averaged into one (Wang et al., EMNLP 2022).

In training each step runs its rows twice, each time through one bottleneck a layer that is drawn at
random. For all else, evaluation included, the weights of the M bottlenecks are averaged, so that
what is selected, saved and used has the parameters and the cost of one.

Shape suffixes: B rows, T tokens, H hidden size, C outputs; M bottlenecks of width r.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinyattn.methods.attention import OUT_INIT
from tinyattn.methods.bottleneck import ACTIVATIONS

RUNS = 2
"""How often a training step runs its rows, each time by a route of its own."""


class AdaMix(nn.Module):
    """z̃ = U_j f(D_i z + b_i) + c_j, with one i and one j of M for a whole training step.

    Without a route i and j are all: the mean of the weights, as a `Bottleneck`. Weights lie in one
    tensor for all M, so that those that are not drawn have gradients of zero, not none: AdamW moves
    them by momentum and decay, whatever the number of passes and ranks.

    Attributes:
        down_weight: D, [M, r, H]; [1, r, H] where it is shared.
        down_bias: b, [M, r], or None.
        up_weight: U, [M, H, r]; [1, H, r] where it is shared.
        up_bias: c, [M, H], or None.
    """

    def __init__(
        self,
        hidden_size: int,
        r: int,
        num_experts: int,
        share: Literal["none", "up", "down"] = "up",
        activation: str = "gelu",
        *,
        norm: Literal["none", "plain", "affine"] = "none",
        bias: bool = True,
    ) -> None:
        super().__init__()
        downs = 1 if share == "down" else num_experts
        ups = 1 if share == "up" else num_experts
        self.activation = activation
        self.norm = (
            nn.Identity()
            if norm == "none"
            else nn.LayerNorm(hidden_size, elementwise_affine=norm == "affine")
        )
        self.down_weight = nn.Parameter(torch.empty(downs, r, hidden_size))
        self.up_weight = nn.Parameter(torch.empty(ups, hidden_size, r))
        self.down_bias = nn.Parameter(torch.empty(downs, r)) if bias else None
        self.up_bias = nn.Parameter(torch.empty(ups, hidden_size)) if bias else None
        self.row_keys: Tensor | None = None  # what it draws is the same for all rows

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw fresh weights for each of the M apart, as a Bottleneck does."""
        bound = 1 / math.sqrt(self.down_weight.shape[-1])
        nn.init.uniform_(self.down_weight, -bound, bound, generator=generator)
        bound = OUT_INIT / math.sqrt(self.up_weight.shape[1])
        nn.init.uniform_(self.up_weight, -bound, bound, generator=generator)
        for bias in (self.down_bias, self.up_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(
        self, z_BTH: Tensor, *_: Any, route: tuple[int, int] | None = None, **__: Any
    ) -> Tensor:
        """Return z̃, [B, T, H], in the dtype of `z_BTH`.

        Args:
            z_BTH: intermediate embeddings.
            route: numbers of the down and of the up projection; None: the mean of all.

        Further arguments are those of TinyAttention.
        """
        down, up = route or (None, None)
        x = self.norm(z_BTH.to(self.down_weight.dtype))
        x = ACTIVATIONS[self.activation](_project(x, self.down_weight, self.down_bias, down))
        return _project(x, self.up_weight, self.up_bias, up).to(z_BTH.dtype)

    def draw(self, draws: np.random.RandomState) -> np.ndarray:
        """Return a route for each run of a step, [RUNS, 2]: a down and an up projection."""
        most = [len(self.down_weight), len(self.up_weight)]
        return draws.randint(most, size=(RUNS, 2))

    @torch.no_grad()
    def averaged(self) -> dict[str, Tensor]:
        """Return the mean of the weights, as the state dict of a Bottleneck."""
        found = {f"norm.{key}": value for key, value in self.norm.state_dict().items()}
        found |= {"down.weight": _one(self.down_weight), "up.weight": _one(self.up_weight)}
        if self.down_bias is not None and self.up_bias is not None:
            found |= {"down.bias": _one(self.down_bias), "up.bias": _one(self.up_bias)}
        return found


def _project(x: Tensor, weights: Tensor, biases: Tensor | None, number: int | None) -> Tensor:
    return F.linear(x, _one(weights, number), None if biases is None else _one(biases, number))


def _one(weights: Tensor, number: int | None = None) -> Tensor:
    """Return one of several weights; None: their mean."""
    return weights.mean(0) if number is None else weights[number]


def disagreement(one_BC: Tensor, other_BC: Tensor, apart: bool = False) -> Tensor:
    """Return the consistency loss of each row, [B]: how far two routes' predictions differ.

    For classes it is ½ (KL(p‖q) + KL(q‖p)) of the predicted probabilities, as in the paper, with
    gradients through both (the authors' code holds one side of each term fixed). A regression has
    one output and no probabilities: there it is the squared difference (the authors' code has
    nothing there). Of labels that rows have apart from each other it is the mean over them.

    Args:
        one_BC: outputs of one route.
        other_BC: outputs of the other.
        apart: whether each output is the log odds of a label.
    """
    if apart:  # of two outcomes both divergences are (p − q) (log odds of p − those of q)
        return ((one_BC.sigmoid() - other_BC.sigmoid()) * (one_BC - other_BC)).mean(-1) / 2
    if one_BC.shape[-1] == 1:
        return (one_BC - other_BC).squeeze(-1).square()
    log_p, log_q = F.log_softmax(one_BC, dim=-1), F.log_softmax(other_BC, dim=-1)
    # Both divergences in one sum: Σ p (log p − log q) + Σ q (log q − log p).
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 2
