"""Adapter folders as tests look into them."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from tinyattn.adapters.checkpoint import AdapterCard, read_card, read_weights


def read_adapter(folder: Path) -> tuple[AdapterCard, dict[str, Tensor]]:
    """Read an adapter folder whole, each file verified."""
    card = read_card(folder)
    return card, read_weights(folder, card)
