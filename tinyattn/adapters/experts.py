"""Experts: `perturb` copies one head into M slightly different ones, `collapse` merges M into one.

Equations 5-8 of the paper, in mean form: z̃ = (1/M) Σ_m O_m Attn_m + b. In the paper's sum form, M
copies of a head would start with M times its output, and a step of AdamW would move the collapsed O
M times as far. In mean form the copies together compute the one head's function, and equations 7-8,
M · mean(O^{eq1}), become the plain mean of `out_weight`.

Shapes as in attention.py: M heads, D dimension of a head, H hidden size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tinyattn.adapters.adapter import Adapter
from tinyattn.config import AdapterConfig
from tinyattn.errors import UsageError
from tinyattn.methods.attention import TinyAttention

CollapseMethod = Literal["average", "aligned", "products"]
PER_HEAD = ("qkv_weight", "query_bias", "out_weight")


def perturb(
    adapter: Adapter, plm: PreTrainedModel, num_heads: int, noise: float, seed: int
) -> Adapter:
    """Return an adapter with `num_heads` slightly different copies of a one-head adapter.

    The noise of all heads sums to zero, so collapsing at once returns the one head, and to first
    order the function is unchanged. LayerNorm, biases, pooling and classifier are copied.

    Args:
        adapter: an adapter of one head, which is copied; or of `num_heads` heads, which are only
            perturbed.
        plm: the PLM it is attached to.
        num_heads: M.
        noise: σ relative to the root mean square of each weight tensor.
        seed: seed of the noise.

    Raises:
        UsageError: `adapter` is of another method, or has neither 1 nor `num_heads` heads.
    """
    one = _tiny(adapter)
    heads = one.num_heads
    if heads not in (1, num_heads):
        raise UsageError(
            f"an adapter of {heads} heads came, only 1 or {num_heads} heads can become "
            f"{num_heads}; collapse it first"
        )
    config = one.model_copy(update={"num_heads": num_heads})
    wide = _fresh(plm, config, adapter)
    generator = torch.Generator().manual_seed(seed)
    state = {
        key: _copies(value.cpu(), num_heads // heads, noise, generator, _head_axis(key))
        for key, value in adapter.state_dict().items()
    }
    wide.load_state_dict(state)
    return wide


def _head_axis(key: str) -> int | None:
    """The axis of the heads in a state-dict entry; None for one that heads share (norm, bias)."""
    name = key.rsplit(".", 1)[-1]
    if not key.startswith("layers.") or name not in PER_HEAD:
        return None
    return 1 if name == "qkv_weight" else 0


def _copies(
    weight: Tensor, times: int, noise: float, generator: torch.Generator, axis: int | None
) -> Tensor:
    if axis is None:
        return weight
    copies = weight.repeat_interleave(times, dim=axis)
    draws = torch.randn(copies.shape, generator=generator, dtype=torch.float64)
    draws -= draws.mean(dim=axis, keepdim=True)  # Σ_m δ_m = 0
    scale = noise * weight.double().square().mean().sqrt()
    return (copies.double() + scale * draws).to(weight.dtype)


def collapse(adapter: Adapter, plm: PreTrainedModel, method: CollapseMethod = "average") -> Adapter:
    """Return a one-head adapter merged from all heads, with the same norm and classifier.

    Args:
        adapter: an adapter of M heads.
        plm: the PLM it is attached to.
        method: `average`: equations 5-8. `aligned`: the same after `align`. `products`: average the
            products q·kᵀ and v·oᵀ, which do not change when a head is rotated (see `align`), and
            take the best rank-D factors of the means.

    All three are exact while heads share Q, K and V.
    """
    config = _tiny(adapter).model_copy(update={"num_heads": 1})
    single = _fresh(plm, config, adapter)
    single.load_state_dict(adapter.state_dict() | _collapsed(adapter, method))
    return single


def _tiny(adapter: Adapter) -> AdapterConfig:
    """Return the settings of a tiny-attention adapter; UsageError if it is of another method."""
    if not isinstance(adapter.config, AdapterConfig):
        raise UsageError(f"an adapter of method {adapter.config.method} came, allowed is tiny")
    return adapter.config


def _fresh(plm: PreTrainedModel, config: AdapterConfig, model: Adapter) -> Adapter:
    """Return a new adapter on `model`'s device, in its number format and mode (train or eval)."""
    like = next(model.parameters(), torch.empty(0))
    adapter = Adapter(plm, config, model.num_outputs, pooling=model.pooling.kind)
    return adapter.to(like.device, like.dtype).train(model.training)


def _collapsed(adapter: Adapter, method: CollapseMethod) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for index, module in adapter.layers.items():
        assert isinstance(module, TinyAttention)
        heads = heads_of(module)
        if method == "aligned":
            heads = align(heads)
        one = _best_factors(heads) if method == "products" else [h.mean(0) for h in heads]
        dtype = module.qkv_weight.dtype
        query, key, value, out = (part.to(dtype) for part in one)
        hidden = module.hidden_size
        state[f"layers.{index}.qkv_weight"] = torch.stack([query[:, :hidden], key, value])[:, None]
        state[f"layers.{index}.out_weight"] = out[None]
        if module.query_bias is not None:
            state[f"layers.{index}.query_bias"] = query[None, :, hidden]
    return state


Heads = tuple[Tensor, Tensor, Tensor, Tensor]


def heads_of(module: TinyAttention) -> Heads:
    """Return (query, key, value, out) of all heads in float64, each [M, D, H].

    `query` is [M, D, H + 1] where there is a query bias: the last column is that bias.
    """
    query, key, value = module.qkv_weight.detach().double().unbind(0)
    if module.query_bias is not None:
        query = torch.cat([query, module.query_bias.detach().double()[..., None]], dim=-1)
    return query, key, value, module.out_weight.detach().double()


def align(heads: Heads) -> Heads:
    """Rotate each head towards the first one, without changing what it computes.

    (q, k) → (Rq, Rk) and (v, o) → (Sv, So) leave a head's function unchanged for orthogonal R and
    S; with D = 1 these are signs. R brings q and k nearest to head 0's, S brings v nearest to head
    0's (orthogonal Procrustes). S is chosen by v alone: heads with equal V then average exactly,
    whatever their O.
    """
    query, key, value, out = (part.clone() for part in heads)
    for m in range(1, len(query)):
        turn = _procrustes(query[0] @ query[m].T + key[0] @ key[m].T)
        query[m], key[m] = turn @ query[m], turn @ key[m]
        turn = _procrustes(value[0] @ value[m].T)
        value[m], out[m] = turn @ value[m], turn @ out[m]
    return query, key, value, out


def _procrustes(overlap: Tensor) -> Tensor:
    """Return the orthogonal R that maximises trace(Rᵀ · overlap)."""
    left, _, right = torch.linalg.svd(overlap)
    return left @ right


def _best_factors(heads: Heads) -> list[Tensor]:
    """Return the best rank-D factors of the mean over heads of q·kᵀ and of v·oᵀ."""
    query, key, value, out = heads
    return [*_mean_product(query, key), *_mean_product(value, out)]


def _mean_product(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Factor the mean over heads of left_mᵀ right_m: [M, D, X], [M, D, Y] to [D, X], [D, Y].

    The factors' product is the best approximation of rank D (Eckart-Young). The mean has rank at
    most M·D, so its SVD is that of a small core between two QR factors; the H × H matrix is never
    built.
    """
    heads, dim, _ = left.shape
    basis_l, core_l = torch.linalg.qr(left.flatten(0, 1).T)
    basis_r, core_r = torch.linalg.qr(right.flatten(0, 1).T)
    u, s, vh = torch.linalg.svd(core_l @ core_r.T / heads)
    root = s[:dim].sqrt()[:, None]
    return root * (basis_l @ u[:, :dim]).T, root * (basis_r @ vh[:dim].T).T
