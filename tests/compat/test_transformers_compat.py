"""What is used of transformers beyond its public interface is there, and does the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as F
import transformers
from huggingface_hub import constants
from torch import nn
from transformers import AttentionInterface, AutoConfig, AutoModel, DynamicCache, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tinyattn.errors import PlmError
from tinyattn.plms.loading import load_plm
from tinyattn.plms.transformers_compat import (
    attention_named,
    choose_plain_attention,
    further_layer,
    product_weight,
    revision_of,
    without_adapters,
)


def test_a_plm_calls_the_attention_that_is_named_within_the_block_alone(
    build_plm: Callable[..., PreTrainedModel],
) -> None:
    calls: list[int] = []

    def attention(module: Any, query: torch.Tensor, *rest: Any, **more: Any) -> Any:
        calls.append(1)
        return query.transpose(1, 2), None

    AttentionInterface.register("tinyattn_compat_test", attention)
    plm = build_plm("bert")
    ids = torch.tensor([[3, 4, 5]])
    with attention_named(plm, "tinyattn_compat_test"):
        plm(input_ids=ids)
    assert len(calls) == plm.config.num_hidden_layers
    plm(input_ids=ids)
    assert len(calls) == plm.config.num_hidden_layers


def test_an_adapter_beside_the_weights_is_applied_outside_of_the_block_alone(
    build_plm: Callable[..., PreTrainedModel], tmp_path: Path
) -> None:
    """Else transformers has changed: no block would be needed, or another."""
    build_plm("bert").save_pretrained(tmp_path)
    adapted = peft.get_peft_model(build_plm("bert"), peft.LoraConfig(target_modules=["query"]))
    adapted.save_pretrained(tmp_path)

    def names() -> list[str]:
        return [name for name, _ in AutoModel.from_pretrained(tmp_path).named_parameters()]

    with without_adapters():
        assert not any("lora" in name for name in names())
        with without_adapters():
            pass
        assert not any("lora" in name for name in names())
    assert any("lora" in name for name in names())


def test_attention_that_a_config_names_is_not_loaded(
    build_plm: Callable[..., PreTrainedModel], tmp_path: Path
) -> None:
    build_plm("bert").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    for named, wanted in (("someone/kernel", "sdpa"), ("eager", "eager")):
        path.write_text(json.dumps({**json.loads(path.read_text()), "attn_implementation": named}))
        config = AutoConfig.from_pretrained(tmp_path)
        assert config._attn_implementation == named
        choose_plain_attention(config)
        model = AutoModel.from_pretrained(tmp_path, config=config)
        assert model.config._attn_implementation == wanted


def test_a_plm_from_the_hub_has_the_commit_that_it_was_loaded_from(
    build_plm: Callable[..., PreTrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's cache as it is on disk: a branch names a commit, and a commit has files."""
    commit = "0a1b" * 10
    plm = build_plm("bert")
    assert revision_of(plm) is None
    place = tmp_path / "models--own--plm"
    plm.save_pretrained(place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert revision_of(AutoModel.from_pretrained("own/plm", local_files_only=True)) == commit
    assert revision_of(AutoModel.from_pretrained(place / "snapshots" / commit)) is None


def test_products_of_gpt2_have_a_transposed_weight() -> None:
    x = torch.randn(2, 3)
    for product in (nn.Linear(3, 5), Conv1D(5, 3)):
        weight = product_weight(product)
        assert weight is not None
        assert weight.shape == (5, 3)
        assert torch.allclose(product(x), F.linear(x, weight, product.bias), atol=1e-6)
    assert product_weight(nn.LayerNorm(3)) is None


def test_a_cache_keeps_further_layers_behind_those_of_its_plm(
    build_plm: Callable[..., PreTrainedModel],
) -> None:
    """The PLM looks at its own layers alone, and beams reorder all."""
    plm = build_plm("gpt2")
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    wanted = plm(input_ids=ids, use_cache=True).last_hidden_state
    cache = DynamicCache(config=plm.config)
    count = plm.config.num_hidden_layers
    states = torch.randn(2, 1, 3, 4)
    key, _ = further_layer(cache, count + 1).update(states, states)
    assert torch.equal(key, states)
    assert further_layer(cache, count + 1) is cache.layers[count + 1]
    found = plm(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state
    assert torch.equal(found, wanted)
    assert cache.get_seq_length() == 3
    cache.reorder_cache(torch.tensor([1, 0]))
    key, _ = further_layer(cache, count + 1).update(states, states)
    assert torch.equal(key[:, :, :3], states.flip(0))


@pytest.mark.parametrize("enabled", [True, False])
def test_loading_a_plm_leaves_bars_and_level_as_they_were(tmp_path: Path, enabled: bool) -> None:
    logging = transformers.logging
    before = logging.is_progress_bar_enabled()
    switch = {True: logging.enable_progress_bar, False: logging.disable_progress_bar}
    switch[enabled]()
    try:
        with pytest.raises(PlmError):
            load_plm(str(tmp_path))
        assert logging.is_progress_bar_enabled() is enabled
    finally:
        switch[before]()
