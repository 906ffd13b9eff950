"""A PLM folder that loads and trains in moments: random weights under MiniLM's own tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from tinyattn.plm import find_plm


def save_tiny_plm(folder: Path, *, seed: int = 0) -> Path:
    """Write a two-layer BERT, H = 32, with 64 positions; return its folder."""
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(find_plm("minilm"))
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
