"""Shared by all tests: no network, one thread, a real small PLM, and tiny random ones."""

from __future__ import annotations

import gc
import os

gc.disable()  # until all is imported: a quarter of the time that this takes

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests share a small machine

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # loaded where it is needed: the process that shares out the tests needs none
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

    from tinyattn.plms.loading import Plm


def pytest_collection_finish() -> None:
    """Switch the garbage collector on, for what tests make alone."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that none of them is what all wait for at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


BuildPlm = Callable[..., "PreTrainedModel"]
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
DECODER: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}


def tiny_config(kind: str) -> PretrainedConfig:
    """A configuration of every known family; `albert-groups` is ALBERT with 2 x 2 layers."""
    import transformers

    match kind:
        case "electra":
            return transformers.ElectraConfig(**SIZES, embedding_size=8)
        case "distilbert":
            renamed = {"hidden_size": "dim", "num_hidden_layers": "n_layers"}
            renamed |= {"num_attention_heads": "n_heads", "intermediate_size": "hidden_dim"}
            return transformers.DistilBertConfig(**{renamed.get(k, k): v for k, v in SIZES.items()})
        case "deberta-v2":
            relative: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
            relative["position_buckets"] = 4
            return transformers.DebertaV2Config(**SIZES, **relative)
        case "albert":
            return transformers.AlbertConfig(**SIZES, embedding_size=8)
        case "albert-groups":
            sizes = SIZES | {"num_hidden_layers": 4}
            groups: dict[str, Any] = {"num_hidden_groups": 2, "inner_group_num": 2}
            return transformers.AlbertConfig(**sizes, **groups, embedding_size=8)
        case "gpt2":
            return transformers.GPT2Config(**SIZES, **DECODER, n_inner=24)
        case "modernbert":
            own: dict[str, Any] = {"local_attention": 4, "global_attn_every_n_layers": 2}
            special = {"cls_token_id": 1, "sep_token_id": 2}
            return transformers.ModernBertConfig(**SIZES, **DECODER, **own, **special)
        case "deberta":
            relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
            return transformers.DebertaConfig(**SIZES, **relative, max_relative_positions=8)
        case "opt":
            sizes = {"ffn_dim" if k == "intermediate_size" else k: v for k, v in SIZES.items()}
            return transformers.OPTConfig(**sizes, **DECODER, word_embed_proj_dim=16)
        case "mistral" | "gemma2" | "gemma3_text":
            few = {"num_key_value_heads": 2, "head_dim": 4, "sliding_window": 4}
            return transformers.AutoConfig.for_model(kind, **SIZES, **DECODER, **few)
        case "qwen2" | "qwen3" | "gemma" | "phi3":
            few = {"num_key_value_heads": 2, "head_dim": 4}
            return transformers.AutoConfig.for_model(kind, **SIZES, **DECODER, **few)
        case "t5" | "t5-gated" | "mt5" | "umt5":
            names = {"hidden_size": "d_model", "num_hidden_layers": "num_layers"}
            names |= {"num_attention_heads": "num_heads", "intermediate_size": "d_ff"}
            sizes = {names.get(k, k): v for k, v in SIZES.items() if k in names}
            near: dict[str, Any] = {"d_kv": 4, "vocab_size": 40, "pad_token_id": 0}
            near |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
            near["feed_forward_proj"] = "relu" if kind == "t5" else "gated-gelu"
            return transformers.AutoConfig.for_model(kind.removesuffix("-gated"), **sizes, **near)
        case "llama":
            return transformers.LlamaConfig(**SIZES, **DECODER, num_key_value_heads=2)
    return transformers.AutoConfig.for_model(kind, **SIZES)


@pytest.fixture(scope="session")
def build_plm() -> BuildPlm:
    """Builds a PLM with random weights, large enough to matter, in float64 and eval mode."""
    import torch
    import transformers

    def build(
        kind: str,
        *,
        seed: int = 0,
        attn: str | None = None,
        causal_lm: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> PreTrainedModel:
        auto = transformers.AutoModelForCausalLM if causal_lm else transformers.AutoModel
        if "t5" in kind:
            auto = transformers.AutoModelForTextEncoding
        options = {} if attn is None else {"attn_implementation": attn}
        plm = auto.from_config(tiny_config(kind), **options)
        draws = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in plm.parameters():
                noise = torch.randn(parameter.shape, generator=draws)
                scale = 0.3 if parameter.ndim > 1 else 0.1
                parameter.copy_(noise * scale + (parameter if parameter.ndim == 1 else 0))
        return plm.to(dtype).eval().requires_grad_(False)

    return build


@pytest.fixture(scope="session")
def minilm() -> Plm:
    """The real all-MiniLM-L6-v2; shared, so a test detaches what it attaches."""
    from tinyattn.plms.loading import load_plm

    return load_plm("minilm")
