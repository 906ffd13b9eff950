"""What is used of transformers beyond its public interface is there, and does the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel, configuration_utils

from tinyattn.plms.transformers_compat import attention_named, revision_of


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


def test_the_configuration_has_the_commit_that_the_hub_named(
    build_plm: Callable[..., PreTrainedModel],
) -> None:
    plm = build_plm("bert")
    assert revision_of(plm) is None
    plm.config._commit_hash = "0a1b"
    assert revision_of(plm) == "0a1b"
    assert '"_commit_hash"' in inspect.getsource(configuration_utils)
