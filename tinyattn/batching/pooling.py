"""Pooling: from the last hidden states of a row's tokens to the row's embedding.

A classifier reads the embedding. Padded rows and rows of a packed sequence are pooled by the same
arithmetic, row by row, so neither padding nor other rows change a result.

Shape suffixes: B rows, T tokens of the longest row, N tokens of the stream, H hidden size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tinyattn.batching.packed_sequence import PackedSequence, rows_in
from tinyattn.config import PoolingKind


class Pooling(nn.Module):
    """The way from the hidden states h_1 ... h_T of a row's real tokens to one embedding.

    first: h_1; in a decoder, where only the last token has seen the whole row, h_T.
    mean: (1/T) Σ_t h_t.
    attention: Σ_t w_t h_t with w = softmax_t(h_t · query / √H) and a learned query [H], as the word
    attention of Yang et al. (NAACL 2016, equations 5-7) without its hidden layer. A fresh query is
    0, and its embedding the mean.

    Args:
        kind: `first`, `mean` or `attention`.
        hidden_size: H.
        causal: whether the PLM is a decoder.
    """

    def __init__(self, kind: PoolingKind, hidden_size: int, causal: bool) -> None:
        super().__init__()
        self.kind: PoolingKind = kind
        self.causal = causal
        self.query = nn.Parameter(torch.zeros(hidden_size)) if kind == "attention" else None

    def forward(self, hidden_BTH: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Return the embeddings of padded rows, [B, H] in fp32.

        Args:
            hidden_BTH: last hidden states.
            mask_BT: 1 for a real token; None: all are real.
        """
        if self.kind == "first":
            return self._edges(hidden_BTH, mask_BT).to(torch.float32)
        real = None if mask_BT is None else mask_BT.bool()
        return self._weighted(real, hidden_BTH).to(torch.float32)

    def packed(self, hidden_NH: Tensor, stream: PackedSequence) -> Tensor:
        """Return the embeddings of the rows of a packed sequence, [B, H] in fp32.

        Args:
            hidden_NH: last hidden states of all its tokens, filler included.
            stream: the packed sequence.
        """
        if self.kind == "first":
            edges = stream.edges(last=self.causal).to(hidden_NH.device, non_blocking=True)
            return hidden_NH.index_select(0, edges).to(torch.float32)

        def pool(mask_B11T: Tensor | None, own_BTH: Tensor) -> Tensor:
            return self._weighted(None if mask_B11T is None else mask_B11T[:, 0, 0], own_BTH)

        return rows_in(stream.tiny_groups, pool, hidden_NH).to(torch.float32)

    def _edges(self, hidden_BTH: Tensor, mask_BT: Tensor | None) -> Tensor:
        if not self.causal:
            return hidden_BTH[:, 0]
        if mask_BT is None:
            return hidden_BTH[:, -1]
        positions = torch.arange(mask_BT.shape[1], device=mask_BT.device)
        last = (positions * mask_BT).argmax(dim=1)
        return hidden_BTH[torch.arange(len(last), device=last.device), last]

    def _weighted(self, real_BT: Tensor | None, hidden_BTH: Tensor) -> Tensor:
        """Return the mean of each row, or its sum by the weights of attention, [B, H]."""
        x = hidden_BTH.to(torch.promote_types(hidden_BTH.dtype, torch.float32))
        if real_BT is not None:  # a padded place may hold NaN, which no weight of 0 takes away
            x = x.masked_fill(~real_BT[..., None], 0)
        if self.query is None:
            if real_BT is None:
                return x.mean(dim=1)
            return x.sum(dim=1) / real_BT.sum(dim=1, keepdim=True)
        # Sums, not matrix products, whose bits may depend on where in memory a row stands.
        scores = (x * self.query).sum(dim=-1) / math.sqrt(x.shape[-1])
        if real_BT is not None:
            scores = scores.masked_fill(~real_BT, -math.inf)
        return (scores.softmax(dim=-1)[..., None] * x).sum(dim=1)
