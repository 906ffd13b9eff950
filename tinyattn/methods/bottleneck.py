"""Bottleneck: two projections with a function between them, the adapter of Houlsby et al. (2019).

It sees each position alone; beside tiny attention it shows what context is worth. Where it is put,
BottleneckConfig says: in the place of tiny attention, or in those of Houlsby or of Pfeiffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinyattn.methods.attention import OUT_INIT

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
}


class Bottleneck(nn.Module):
    """z̃ = W_up f(W_down z + b_down) + b_up, with W_down [r, H] and W_up [H, r].

    It has 2·H·r parameters, and r + H more with biases.
    """

    def __init__(
        self,
        hidden_size: int,
        r: int,
        activation: str = "none",
        *,
        norm: Literal["none", "plain", "affine"] = "none",
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.norm = (
            nn.Identity()
            if norm == "none"
            else nn.LayerNorm(hidden_size, elementwise_affine=norm == "affine")
        )
        self.down = nn.Linear(hidden_size, r, bias=bias)
        self.up = nn.Linear(r, hidden_size, bias=bias)
        self.row_keys: Tensor | None = None  # it draws nothing at random

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw fresh weights as TinyAttention does: nearly no change of the PLM at first."""
        bound = 1 / math.sqrt(self.down.in_features)
        nn.init.uniform_(self.down.weight, -bound, bound, generator=generator)
        bound = OUT_INIT / math.sqrt(self.down.out_features)
        nn.init.uniform_(self.up.weight, -bound, bound, generator=generator)
        for projection in (self.down, self.up):
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def forward(self, z_BTH: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return z̃, [B, T, H], in the dtype of `z_BTH`.

        Further arguments are those of TinyAttention: what other positions a position may see.
        """
        x = self.norm(z_BTH.to(self.down.weight.dtype))
        return self.up(ACTIVATIONS[self.activation](self.down(x))).to(z_BTH.dtype)
