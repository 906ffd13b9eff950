"""Rows one after the other give what the same rows give padded, whoever their neighbours are."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from test_placement import DECODERS, ENCODERS, PLACEMENTS, batch_of, randomise
from torch import Tensor, nn

from tinyattn.config import AdapterConfig
from tinyattn.errors import UsageError
from tinyattn.model import AdaptedModel
from tinyattn.stream import Stream, attend_in, group_rows, joined

STREAMED = [kind for kind in ENCODERS + DECODERS if kind != "deberta-v2"]
ROWS = {
    "one": [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18]],
    "two": [[7, 9, 30, 31, 32], [8, 8, 8, 8, 8], [20, 21, 22, 23, 24]],
    "three": [[3]],
    "none": [[19, 18, 17, 16], [15]],
}
SHAPES: dict[str, dict[str, Any]] = {
    "one": {"num_heads": 4, "head_dim": 1, "norm": "affine"},
    "two": {"num_heads": 1, "head_dim": 3, "norm": "none", "bias": False, "layers": "top-1"},
    "three": {"num_heads": 2, "head_dim": 1, "layers": [0, 2]},
    "none": {"layers": "none"},
}
CUTS = {"one": [1, 2], "two": [3], "three": [1], "none": [2]}
OUTPUTS = {"one": 2, "two": 3, "three": 1, "none": 2}


def stream_of(rows: list[list[int]], cuts: list[int]) -> Stream:
    device = torch.device("cpu")
    lengths = np.array([len(row) for row in rows])
    positions = [place for row in rows for place in range(len(row))]
    return Stream(
        {"input_ids": torch.tensor([[*chain(*rows)]])},
        torch.tensor([positions]),
        lengths,
        group_rows(lengths, cuts, device),
        group_rows(lengths, [len(rows)], device),
    )


def four_adapters(plm: Any, placement: str) -> AdaptedModel:
    model = AdaptedModel(plm, placement)
    for seed, (name, shape) in enumerate(SHAPES.items()):
        config = AdapterConfig(placement=placement, dropout=0.0, **shape)
        adapter = model.add_adapter(name, config, OUTPUTS[name])
        randomise(adapter.to(plm.dtype), seed)
        assert adapter.classifier is not None
        adapter.classifier.float()
    return model


def gradients(model: AdaptedModel, name: str) -> dict[str, Tensor]:
    adapter = model.adapter(name)
    found = {k: p.grad for k, p in adapter.named_parameters() if p.grad is not None}
    adapter.zero_grad()
    return found


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("kind", STREAMED)
def test_mixed_rows_give_what_each_adapter_gives_alone(
    build_plm: Any, kind: str, placement: str
) -> None:
    plm = build_plm(kind, dtype=torch.float32)
    model = four_adapters(plm, placement)
    assert model.can_stream()
    alone, alone_gradients = {}, {}
    for name, rows in ROWS.items():
        model.switch(name)
        alone[name] = model(**batch_of(rows, "right"))
        alone[name].square().sum().backward()
        alone_gradients[name] = gradients(model, name)
    parts = [(name, stream_of(rows, CUTS[name])) for name, rows in ROWS.items()]
    mixed = dict(zip(ROWS, model.run_streams(parts), strict=True))
    sum(logits.square().sum() for logits in mixed.values()).backward()
    for name, logits in mixed.items():
        torch.testing.assert_close(logits, alone[name], rtol=1e-4, atol=1e-5)
        found = gradients(model, name)
        assert found.keys() == alone_gradients[name].keys()
        for key, gradient in found.items():
            scale = float(alone_gradients[name][key].abs().max())
            torch.testing.assert_close(
                gradient, alone_gradients[name][key], rtol=1e-4, atol=1e-4 * scale + 1e-6
            )
        assert (mixed[name] - mixed["one"][:1, :1]).abs().max() > 1e-3
    assert plm.config._attn_implementation != "tinyattn_stream"
    model.detach()


def test_who_cannot_stream_is_found_out(build_plm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not AdaptedModel(build_plm("deberta-v2", dtype=torch.float32)).can_stream()
    roberta = build_plm("roberta", dtype=torch.float32)
    model = AdaptedModel(roberta)
    monkeypatch.setattr(type(model.sites), "first_position", 0)  # as if it counted like BERT
    assert not model.can_stream()


def test_what_is_not_finite_stays_with_its_adapter(build_plm: Any) -> None:
    """A trial that diverges must not touch its neighbours, in either direction of the pass."""
    model = four_adapters(build_plm("bert", dtype=torch.float32), "sequential")
    parts = [(name, stream_of(ROWS[name], CUTS[name])) for name in ROWS]
    before = model.run_streams(parts)
    sum(logits.square().sum() for logits in before).backward()
    wanted = {name: gradients(model, name) for name in ROWS}
    with torch.no_grad():
        next(model.adapter("one").parameters()).fill_(math.inf)
    after = model.run_streams(parts)
    assert not after[0].isfinite().any()
    sum(logits.square().sum() for logits in after).backward()
    for place, name in enumerate(ROWS):
        if name != "one":
            assert torch.equal(after[place], before[place])
            found = gradients(model, name)
            assert all(torch.equal(found[key], wanted[name][key]) for key in wanted[name])


def test_a_row_of_a_group_that_is_not_finite_stays_by_itself(build_plm: Any) -> None:
    stream = stream_of(ROWS["one"], [3])
    x = torch.randn(stream.tokens, 4)
    x[0] = math.nan

    def attend(mask: Tensor | None, *parts: Tensor) -> Tensor:
        query, key, value = (part[:, None] for part in parts)
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)[:, 0]

    found = attend_in(stream.groups, attend, x, x, x)
    assert found[:7].isnan().all()
    assert found[7:].isfinite().all()


def test_streams_join_in_order() -> None:
    one, two = stream_of(ROWS["one"], [1, 2]), stream_of(ROWS["two"], [3])
    whole = joined([one, two])
    assert whole.inputs["input_ids"][0].tolist() == [*chain(*ROWS["one"], *ROWS["two"])]
    assert [(g.first, g.last) for g in whole.groups] == [(0, 7), (7, 14), (14, 29)]
    assert whole.edges(last=False).tolist() == [0, 7, 11, 14, 19, 24]
    assert whole.edges(last=True).tolist() == [6, 10, 13, 18, 23, 28]


def test_unknown_names_and_adapters_without_classifier_are_errors(build_plm: Any) -> None:
    model = four_adapters(build_plm("bert", dtype=torch.float32), "sequential")
    model.add_adapter("bare", AdapterConfig())
    stream = stream_of(ROWS["three"], [1])
    with pytest.raises(UsageError, match=r"no adapter 'thre' is attached — did you mean 'three'\?"):
        model.run_streams([("one", stream), ("thre", stream)])
    with pytest.raises(UsageError, match="'bare' has no classifier"):
        model.run_streams([("bare", stream)])
