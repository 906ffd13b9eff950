"""Rows of a batch one after the other, without padding; each attends to itself alone.

A padded batch [B, T] becomes a stream [1, N], where N is the number of its real tokens. What works
token by token (embeddings, norms, feed-forward nets) runs on it as it is. Attention, of PLM and
adapters alike, runs on groups of rows of similar lengths: equally long ones are a view of the
stream, others are gathered and masked. The mathematics is that of the padded batch.

The PLM's own files stay untouched: transformers calls the attention function that is registered
here while `streaming` is on. `can_stream` finds out whether a PLM can be run so.

Shape suffixes: B rows, T tokens of the longest, N tokens of the stream, H hidden size, h heads,
d dimension of a head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

Attend = Callable[..., Tensor]
"""Takes a key mask [B, 1, 1, T] or None, and inputs [B, T, C]; returns [B, T, C']."""
NAME = "tinyattn_stream"
GROUP_COST = {"cpu": 32.0, "cuda": 8192.0}
"""What one more call of the PLM's attention costs, in padded tokens: measured on a CPU with MiniLM;
a GPU waits for launches."""
TINY_GROUP_COST = {"cpu": 256.0, "cuda": 8192.0}
"""The same of an adapter's attention, where a padded token costs less."""


@dataclass(frozen=True)
class Group:
    """Neighbours in a stream that attend in one call, each to itself."""

    first: int
    """Of their tokens in the stream."""
    last: int
    """One after their last token."""
    rows: int
    length: int
    """Tokens of the longest."""
    place: Tensor | None = None
    """Which of their tokens goes to each place of the padded rows, [B·T]; None: equally long."""
    token: Tensor | None = None
    """Which padded place each of their tokens has."""
    mask: Tensor | None = None
    """[B, 1, 1, T]: which places are real."""

    def as_rows(self, x_NC: Tensor) -> Tensor:
        """These rows of the whole stream's tokens, padded: [B, T, C]."""
        x = x_NC[self.first : self.last]
        if self.place is not None:
            x = x.index_select(0, self.place)
        return x.unflatten(0, (self.rows, self.length))

    def as_tokens(self, x_BTC: Tensor) -> Tensor:
        """What is real of padded rows: [last - first, C]."""
        x = x_BTC.flatten(0, 1)
        return x if self.token is None else x.index_select(0, self.token)

    def moved(self, by: int) -> Group:
        """The same rows, `by` tokens further on in a longer stream."""
        return Group(
            self.first + by, self.last + by, self.rows, self.length,
            self.place, self.token, self.mask,
        )  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """Rows one after the other.

    Attributes:
        inputs: what the PLM takes by token, each [1, N]: input_ids, perhaps token_type_ids.
        positions: [1, N], from 0 in each row.
        lengths: [B] tokens of each row.
        groups: who attends together in the PLM; all tokens, in order.
        tiny_groups: who attends together in an adapter.
        start: layer calls of the PLM that are left out, since `hidden` is what they would give.
        hidden: [1, N, H]; None: nothing is left out.
    """

    inputs: dict[str, Tensor]
    positions: Tensor
    lengths: np.ndarray
    groups: list[Group]
    tiny_groups: list[Group]
    start: int = 0
    hidden: Tensor | None = None

    @property
    def tokens(self) -> int:
        """N."""
        return int(self.lengths.sum())

    def edges(self, last: bool) -> Tensor:
        """Position in the stream of each row's first (or last) token, [B]."""
        ends = np.cumsum(self.lengths)
        return torch.from_numpy(ends - 1 if last else ends - self.lengths)


def attend_in(groups: Sequence[Group], attend: Attend, *inputs_NC: Tensor) -> Tensor:
    """Have groups of rows attend, each by itself; inputs and result [N, C] are of all tokens."""
    found = [
        group.as_tokens(attend(group.mask, *(group.as_rows(x) for x in inputs_NC)))
        for group in groups
    ]
    return found[0] if len(found) == 1 else torch.cat(found)


def joined(streams: Sequence[Stream]) -> Stream:
    """Streams one after the other, as one; they must have the same `start`."""
    if len(streams) == 1:
        return streams[0]
    hidden = [stream.hidden for stream in streams if stream.hidden is not None]
    starts = np.cumsum([0, *(stream.tokens for stream in streams)])
    return Stream(
        inputs={
            name: torch.cat([stream.inputs[name] for stream in streams], dim=1)
            for name in streams[0].inputs
        },
        positions=torch.cat([stream.positions for stream in streams], dim=1),
        lengths=np.concatenate([stream.lengths for stream in streams]),
        groups=_moved([stream.groups for stream in streams], starts),
        tiny_groups=_moved([stream.tiny_groups for stream in streams], starts),
        start=streams[0].start,
        hidden=torch.cat(hidden, dim=1) if hidden else None,
    )


def _moved(groups: Sequence[Sequence[Group]], starts: np.ndarray) -> list[Group]:
    return [
        group.moved(int(start)) for start, own in zip(starts, groups, strict=False) for group in own
    ]


def group_rows(lengths: np.ndarray, cuts: Sequence[int], device: torch.device) -> list[Group]:
    """Groups of neighbouring rows.

    Args:
        lengths: [B] tokens of each row of a stream.
        cuts: rows of each group; together all rows.
        device: where the stream is.
    """
    groups, row, first = [], 0, 0
    for rows in cuts:
        own = lengths[row : row + rows]
        groups.append(_group(own, first, device))
        row, first = row + rows, groups[-1].last
    return groups


def _group(lengths: np.ndarray, first: int, device: torch.device) -> Group:
    rows, length, total = len(lengths), int(lengths.max()), int(lengths.sum())
    if rows * length == total:
        return Group(first, first + total, rows, length)
    starts = np.cumsum(lengths) - lengths
    places = np.arange(length)[None]
    real = places < lengths[:, None]
    # Padding repeats a token of its own row, so that what is not finite stays there.
    place = starts[:, None] + np.minimum(places, lengths[:, None] - 1)

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return Group(
        first,
        first + total,
        rows,
        length,
        place=tensor(place.ravel()),
        token=tensor(np.flatnonzero(real)),
        mask=tensor(real[:, None, None]),
    )


# ---- the PLM's attention ----


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    *,
    stream: Stream,
    **rest: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in the place of its own attention: q, k, v [1, h, N, d]."""
    for name in ("sliding_window", "softcap"):
        if rest.get(name) is not None:
            raise NotImplementedError(f"attention with {name}")  # such a PLM cannot stream
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    grouped = query.shape[1] != key.shape[1]  # several queries share a key head, as in Llama
    dim = query.shape[-1]

    def attend(mask: Tensor | None, *parts: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (-1, dim)).transpose(1, 2) for part in parts)
        # Padding is on the right, so a causal query never sees it.
        heads = F.scaled_dot_product_attention(
            q, k, v, attn_mask=None if causal else mask, dropout_p=dropout, is_causal=causal,
            scale=scaling, enable_gqa=grouped,
        )  # fmt: skip
        return heads.transpose(1, 2).flatten(2)

    # On a CPU torch's fused attention is 3 to 10 times slower backward in bf16 than in fp32.
    on_cpu = query.device.type == "cpu"
    number_format = torch.promote_types(query.dtype, torch.float32) if on_cpu else query.dtype
    flat = (x[0].transpose(0, 1).flatten(1).to(number_format) for x in (query, key, value))
    heads = attend_in(stream.groups, attend, *flat).to(query.dtype)
    return heads.unflatten(1, (-1, dim))[None], None


AttentionInterface.register(NAME, _attention)


@contextlib.contextmanager
def streaming(plm: PreTrainedModel) -> Iterator[None]:
    """Within the block the PLM's attention takes streams: give it one as `stream=`."""
    config: Any = plm.config
    before, config._attn_implementation = config._attn_implementation, NAME
    try:
        yield
    finally:
        config._attn_implementation = before
