"""Variants of tiny attention against plain loops in float64, and their parameter counts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tinyattn.adapters.adapter import Adapter
from tinyattn.batching.packed_sequence import PackedSequence
from tinyattn.config import VariantConfig
from tinyattn.methods.attention import TinyAttention
from tinyattn.methods.variant import AttentionVariant

H = 6
SCORES = ("dot", "additive", "rbf", "aggregation")
CHANGES: list[dict[str, Any]] = [
    {},
    {"num_heads": 3, "head_dim": 2},
    {"num_heads": 3, "share_kv": True},
    {"window": 1},
    {"window": 0, "null_key": True},
    {"num_heads": 2, "head_dim": 2, "null_key": True, "share_kv": True, "gate": True, "window": 2},
    {"bias": False, "norm": "none"},
]


def made(score: str, changes: dict[str, Any]) -> AttentionVariant:
    """A variant in float64 whose parameters are all random, none at its fresh value."""
    config = VariantConfig.model_validate(
        {"method": "variant", "score": score, "dropout": 0.0, **changes}
    )
    module = AttentionVariant(H, config).double()
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
            parameter.copy_(0.7 * noise)
    return module


def by_loops(module: AttentionVariant, z: Tensor, sees: Tensor) -> Tensor:
    """The equations of variant.py for one row z [T, H], a number at a time; sees: bool [T, T]."""
    x = module.norm(z)
    heads, dim = module.num_heads, module.head_dim
    length = len(z)
    out = torch.zeros(length, H, dtype=torch.float64)
    for m, t in itertools.product(range(heads), range(length)):
        own = 0 if len(module.key_weight) == 1 else m

        def score(t: int, k: Tensor, m: int = m) -> float:
            if module.score == "aggregation":
                inside = torch.tanh(k + module.inner_bias[m])
                return float((module.outer[m] * inside).sum())
            assert module.query_weight is not None
            q = module.query_weight[m] @ x[t]
            if module.query_bias is not None:
                q = q + module.query_bias[m]
            if module.score == "dot":
                return float(q @ k) / math.sqrt(dim)
            if module.score == "additive":
                return float((module.outer[m] * torch.tanh(q + k + module.inner_bias[m])).sum())
            return -math.exp(float(module.log_sharpness[m])) * float(((q - k) ** 2).sum())

        pairs = []
        for s in range(length):
            near = module.window is None or abs(t - s) <= module.window
            if near and sees[t, s]:
                key = module.key_weight[own] @ x[s]
                pairs.append((score(t, key), module.value_weight[own] @ x[s]))
        if module.null_key is not None and module.null_value is not None:
            pairs.append((score(t, module.null_key[own]), module.null_value[own]))
        if not pairs:
            continue
        total = sum(math.exp(e) for e, _ in pairs)
        found = sum((math.exp(e) / total) * v for e, v in pairs)
        out[t] += module.out_weight[m].T @ found / heads
    if module.out_bias is not None:
        out += module.out_bias
    return out if module.gate is None else out * module.gate


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_a_variant_is_its_equation(score: str, changes: dict[str, Any]) -> None:
    """Padded with a mask, causal, and as a stream, each against the loops."""
    module = made(score, changes).eval()
    draws = torch.Generator().manual_seed(0)
    lengths = (5, 2, 1)
    rows = [torch.randn(n, H, generator=draws, dtype=torch.float64) for n in lengths]
    with torch.no_grad():
        wanted = [by_loops(module, z, torch.ones(len(z), len(z), dtype=torch.bool)) for z in rows]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        real = torch.arange(5) < torch.tensor(lengths)[:, None]
        found = module(padded, allowed=real[:, None, None])
        stream = PackedSequence(
            {"input_ids": torch.zeros(1, 8, dtype=torch.long)},
            torch.cat([torch.arange(n) for n in lengths])[None],
            (torch.tensor(lengths).numpy(),),
        )
        streamed = module(torch.cat(rows)[None], stream=stream)[0].split(lengths)
        for own, one, way, length in zip(wanted, found, streamed, lengths, strict=True):
            torch.testing.assert_close(one[:length], own)
            torch.testing.assert_close(way, own)
        before = torch.ones(5, 5, dtype=torch.bool).tril()
        causal = module(rows[0][None], is_causal=True)[0]
        torch.testing.assert_close(causal, by_loops(module, rows[0], before))


@pytest.mark.parametrize("score", SCORES)
def test_gradients_are_those_of_finite_differences(score: str) -> None:
    module = made(score, {"num_heads": 2, "null_key": True, "gate": True, "window": 1})
    z = torch.randn(1, 4, H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    names, values = zip(*module.named_parameters(), strict=True)

    def run(z: Tensor, *parameters: Tensor) -> Tensor:
        own = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, own, (z,))

    assert torch.autograd.gradcheck(run, (z.requires_grad_(), *values))


def test_dot_without_more_is_tiny_attention() -> None:
    module = made("dot", {"num_heads": 3, "head_dim": 2})
    tiny = TinyAttention(H, 3, 2).double()
    assert module.query_weight is not None
    weights = [module.query_weight, module.key_weight, module.value_weight]
    with torch.no_grad():
        tiny.qkv_weight.copy_(torch.stack(weights))
        for name in ("out_weight", "query_bias", "out_bias"):
            getattr(tiny, name).copy_(getattr(module, name))
        z = torch.randn(2, 7, H, dtype=torch.float64)
        torch.testing.assert_close(module(z), tiny(z))


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"score": "dot"}, 4 * 1024),
        ({"score": "aggregation"}, 3 * 1024 + 2),
        ({"score": "additive"}, 4 * 1024 + 2),
        ({"score": "rbf"}, 4 * 1024 + 1),
        ({"window": 4}, 4 * 1024),
        ({"num_heads": 4, "share_kv": True}, (2 * 4 + 2) * 1024),
        ({"null_key": True}, 4 * 1024 + 2),
        ({"gate": True}, 4 * 1024 + 1),
        ({"bias": True}, 5 * 1024 + 1),
    ],
)
def test_counts_of_method_md(changes: dict[str, Any], count: int, build_plm: Any) -> None:
    """At H = 1024 and D = 1 a layer, biases apart."""
    config = VariantConfig.model_validate({"method": "variant", "bias": False, **changes})
    assert sum(p.numel() for p in AttentionVariant(1024, config).parameters()) == count


def test_dropout_of_a_row_depends_neither_on_other_rows_nor_on_padding() -> None:
    config = VariantConfig(method="variant", score="rbf", dropout=0.5, null_key=True)
    module = AttentionVariant(H, config).train()
    z = torch.randn(3, 4, H)
    keys = torch.tensor([5, 6, 7])
    module.row_keys = keys.clone()
    together = module(z)
    module.row_keys = keys[1:2].clone()
    torch.testing.assert_close(module(z[1:2])[0], together[1])
    longer = torch.cat([z[1:2], torch.randn(1, 3, H)], dim=1)
    module.row_keys = keys[1:2].clone()
    real = torch.tensor([[[[True] * 4 + [False] * 3]]])
    torch.testing.assert_close(module(longer, allowed=real)[0, :4], together[1])
    module.row_keys = keys[1:2].clone() + 1
    assert not torch.allclose(module(z[1:2])[0], together[1])


def test_a_fresh_gate_leaves_the_plm_as_it_is(build_plm: Any) -> None:
    plm = build_plm("bert", dtype=torch.float32)
    from tinyattn.adapters.model import AdaptedModel

    model = AdaptedModel(plm)
    batch = {"input_ids": torch.tensor([[5, 6, 7]])}
    config = VariantConfig(method="variant", gate=True, num_heads=4)
    adapter: Adapter = model.add_adapter("one", config, 2)
    assert adapter.classifier is not None
    with model.disable_adapter():
        bare = model.pool(model.plm(**batch).last_hidden_state, None)
    torch.testing.assert_close(model(**batch), adapter.classifier(bare))
