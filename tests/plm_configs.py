"""Configurations of tiny PLMs of every known family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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
