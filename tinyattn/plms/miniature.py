"""Miniature: a small random copy of a PLM, to try cheaply how it treats rows of every length.

A PLM may treat a row differently beyond a limit in its configuration: an attention window, or the
length from which other rotary frequencies apply. Such limits are often thousands of tokens, but
their value does not matter for what happens there. So the copy has all limits at a few tokens, two
layers (or one of each kind), and heads of the PLM's own dimension.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

LIMIT, POSITIONS, VOCABULARY = 8, 64, 64
_LIMITS = ("window", "chunk", "original_max_position")
"""Settings whose names contain one of these are limits of length."""


def shrunk(plm: PreTrainedModel) -> PreTrainedModel:
    """Return a small copy of the base model: random weights, float64, eval mode, on the host."""
    config = _shrunk_config(plm.config)
    draws = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        small: Any = type(plm.base_model)(config)
    with torch.no_grad():
        for weight in small.parameters():
            # Large, so that attention looks at few places, and a wrong one shows.
            noise = torch.randn(weight.shape, generator=draws)
            weight.copy_(2 * noise / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 1 + noise / 9)
    found: PreTrainedModel = small.to(torch.float64).eval().requires_grad_(False)
    return found


def _shrunk_config(config: Any) -> Any:
    small, heads = copy.deepcopy(config), config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kinds = [*dict.fromkeys(getattr(config, "layer_types", None) or [])]
    small.num_attention_heads, small.hidden_size = 2, 2 * dim
    small.num_hidden_layers = max(2, len(kinds))
    if kinds:
        small.layer_types = (2 * kinds)[: small.num_hidden_layers]
    if getattr(config, "num_key_value_heads", None):
        small.num_key_value_heads = 2 if config.num_key_value_heads == heads else 1
    if getattr(config, "embedding_size", None):
        small.embedding_size = 2 * dim
    small.vocab_size, small.pad_token_id = VOCABULARY, 0
    if getattr(config, "max_position_embeddings", None):
        small.max_position_embeddings = min(config.max_position_embeddings, POSITIONS)
    for name in vars(config):
        setattr(small, name, _limited(name, getattr(small, name)))
    return small


def _limited(name: str, value: Any) -> Any:
    """Return a setting with all limits in it, at any depth, reduced to a few tokens."""
    if isinstance(value, dict):
        return {key: _limited(str(key), own) for key, own in value.items()}
    is_limit = any(part in name for part in _LIMITS) and type(value) is int
    return min(value, LIMIT) if is_limit else value
