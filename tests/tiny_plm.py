"""A PLM folder that loads and trains in moments: random weights under MiniLM's own tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from tinyattn.config import TrainConfig
from tinyattn.plms.loading import find_plm
from tinyattn.training.model_cache import ModelCache


def save_tiny_plm(
    folder: Path, *, seed: int = 0, spread: float = 0.02, masked: bool = False
) -> Path:
    """Write a two-layer BERT, H = 32, with 64 positions; return its folder.

    Adapters change little of what it computes unless its weights are spread more. A masked one has
    its masked-LM head with it.
    """
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(find_plm("minilm"))
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=spread,
    )
    made = transformers.BertForMaskedLM if masked else transformers.BertModel
    made(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def fingerprints_of(config: TrainConfig) -> dict[str, str]:
    """What the driver tells workers of a trial's PLM and data."""
    model_cache = ModelCache()
    return {
        "plm_fingerprint": model_cache.plm(config.plm).fingerprint,
        "data_fingerprint": model_cache.data(config).fingerprint,
    }
