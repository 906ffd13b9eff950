"""Rows of a batch one after the other, without padding; each attends to itself alone.

A padded batch [B, T] becomes a stream [1, N], where N is the number of its real tokens. What works
token by token (embeddings, norms, feed-forward nets) runs on it as it is. Attention, of adapters
and mostly of the PLM (`plm_attention`), runs on groups of rows of similar lengths, which are
gathered and masked. The mathematics is that of the padded batch. `AdaptedModel.can_stream` finds
out whether a PLM can be run so.

Shape suffixes: B rows, T tokens of the longest, N tokens of the stream, P places of its groups, H
hidden size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tinyattn.cutting import split_by_length

Attend = Callable[..., Tensor]
"""Takes a key mask [B, 1, 1, T] or None, and inputs [B, T, C]; returns [B, T, C']."""
GROUP_COST = {"cpu": 32.0, "cuda": 8192.0}
"""What one more call of the PLM's attention costs, in padded tokens: measured on a CPU with MiniLM;
a GPU waits for launches."""
TINY_GROUP_COST = {"cpu": 256.0, "cuda": 8192.0}
"""The same of an adapter's attention, where a padded token costs less."""
TOKEN_STEP, SHORT, SHORT_STEP = 8, 128, 4
"""What the tokens of a stream are a multiple of where there is filler, and of a short one, of which
it would be too large a part."""
LEAST_TOKENS = 16
"""A CPU multiplies fewer rows by other kernels, which round otherwise than those that the same rows
meet among a neighbour's (fp32, MKL)."""
_TYPES = "token_type_ids"


@dataclass(frozen=True)
class Groups:
    """Which rows of a stream attend in one call, each to itself: those of similar lengths.

    Padded to its longest row each, one group after the other, they have P places.

    Attributes:
        sizes: rows and padded length of each group.
        masks: which places of each group are real, [B, 1, 1, T]; None: all.
        place: the token that goes to each place, [P]; None: the stream is just those places.
        token: the place of each token, [N].
    """

    sizes: list[tuple[int, int]]
    masks: list[Tensor | None]
    place: Tensor | None = None
    token: Tensor | None = None


@dataclass(frozen=True)
class Stream:
    """Rows one after the other, and perhaps filler behind those of each lot.

    Attributes:
        inputs: what the PLM takes by token, each [1, N]: input_ids, perhaps token_type_ids.
        positions: [1, N], from 0 in each row.
        lots: tokens of each row, by who brought the rows. Those of different trials attend apart:
            in other groups they would be rounded otherwise than alone.
        start: layer calls of the PLM that are left out, since `hidden` is what they would give.
        hidden: [1, N, H]; None: nothing is left out.
        filler: tokens behind each lot that are nobody's; each is a copy of the token before it.
    """

    inputs: dict[str, Tensor]
    positions: Tensor
    lots: tuple[np.ndarray, ...]
    start: int = 0
    hidden: Tensor | None = None
    filler: tuple[int, ...] = (0,)

    @property
    def tokens(self) -> int:
        """N."""
        return self.positions.shape[1]

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, [B]."""
        return np.concatenate(self.lots)

    @functools.cached_property
    def groups(self) -> Groups:
        """Who attends together in the PLM."""
        return self._grouped(GROUP_COST)

    @functools.cached_property
    def tiny_groups(self) -> Groups:
        """Who attends together in an adapter."""
        return self._grouped(TINY_GROUP_COST)

    def _grouped(self, cost: Mapping[str, float]) -> Groups:
        device = self.positions.device
        return group_rows(self.lots, self.filler, cost[device.type], device)

    @functools.cached_property
    def bounds(self) -> Tensor:
        """Where each row begins, and where the last one ends, int32 [B + 1]; without filler."""
        assert not any(self.filler), "only streams on a CPU have filler"
        bounds = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        return torch.from_numpy(bounds).to(self.positions.device, non_blocking=True)

    def edges(self, last: bool) -> Tensor:
        """Position in the stream of each row's first (or last) token, [B]."""
        before = np.cumsum([0, *self.filler[:-1]])
        ends = np.cumsum(self.lengths) + np.repeat(before, [len(lot) for lot in self.lots])
        return torch.from_numpy(ends - 1 if last else ends - self.lengths)

    def spread(self, values_B: Tensor) -> Tensor:
        """What belongs to rows, for each token [N, 1]; filler has what the row before it has."""
        tokens = [lot.copy() for lot in self.lots]
        for lot, behind in zip(tokens, self.filler, strict=True):
            lot[-1] += behind
        times = torch.from_numpy(np.concatenate(tokens)).to(values_B.device, non_blocking=True)
        return values_B.repeat_interleave(times, output_size=self.tokens)[:, None]

    def filled(self, filler: int) -> Stream:
        """The same rows of one lot with so many tokens behind them, which are nobody's."""
        if filler == 0:
            return self
        there = torch.arange(self.tokens + filler, device=self.positions.device)
        there = there.clamp(max=self.tokens - 1)
        return replace(
            self,
            inputs={name: values[:, there] for name, values in self.inputs.items()},
            positions=self.positions[:, there],
            hidden=None if self.hidden is None else self.hidden[:, there],
            filler=(filler,),
        )


def attend_in(groups: Groups, attend: Attend, *inputs_NC: Tensor) -> Tensor:
    """Have groups of rows attend, each by itself; inputs and result [N, C] are of all tokens."""
    places = [rows * length for rows, length in groups.sizes]
    inputs = [x if groups.place is None else x.index_select(0, groups.place) for x in inputs_NC]
    own = zip(*(x.split(places) for x in inputs), strict=True)
    found = [
        attend(mask, *(x.unflatten(0, size) for x in parts)).flatten(0, 1)
        for size, mask, parts in zip(groups.sizes, groups.masks, own, strict=True)
    ]
    whole = found[0] if len(found) == 1 else torch.cat(found)
    return whole if groups.token is None else whole.index_select(0, groups.token)


def joined(streams: Sequence[Stream]) -> Stream:
    """Streams of one `start` one after the other, as one.

    Rows tokenised without types stand beside rows with them as the PLM takes them alone: as type 0.
    """
    if len(streams) == 1:
        return streams[0]
    names = {name: values for stream in streams for name, values in stream.inputs.items()}
    for stream in streams:
        if missing := names.keys() - stream.inputs.keys() - {_TYPES}:
            raise ValueError(f"a stream without {', '.join(sorted(missing))}, which others have")
    hidden = [stream.hidden for stream in streams if stream.hidden is not None]
    return Stream(
        inputs={
            name: torch.cat(
                [
                    stream.inputs.get(name, values.new_zeros(stream.positions.shape))
                    for stream in streams
                ],
                dim=1,
            )
            for name, values in names.items()
        },
        positions=torch.cat([stream.positions for stream in streams], dim=1),
        lots=tuple(lot for stream in streams for lot in stream.lots),
        start=streams[0].start,
        hidden=torch.cat(hidden, dim=1) if hidden else None,
        filler=tuple(filler for stream in streams for filler in stream.filler),
    )


def filler_of(tokens: int, plm: PreTrainedModel) -> int:
    """Filler that a trial's stream of so many tokens should have; it must not depend on others.

    On a CPU, torch (oneDNN) compiles kernels for each shape it meets in bf16 and keeps them, which
    takes some ms and 100 KB each. Fewer lengths are fewer shapes. LEAST_TOKENS says the rest.
    """
    if plm.device.type != "cpu":
        return 0
    if torch.finfo(plm.dtype).bits >= 32:
        return max(0, LEAST_TOKENS - tokens)
    return -tokens % (TOKEN_STEP if tokens > SHORT else SHORT_STEP)


def group_rows(
    lots: Sequence[np.ndarray], filler: Sequence[int], cost: float, device: torch.device
) -> Groups:
    """Group the rows of each lot so that little of them is padding.

    Args:
        lots: tokens of each row of a stream, by lot.
        filler: tokens behind each lot.
        cost: of one more group, in padded tokens.
        device: where the stream is.
    """

    def moved(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    places, real, sizes, masks, fillers = [], [], [], [], []
    first = 0
    for lengths, extra in zip(lots, filler, strict=True):
        starts = first + np.cumsum(lengths) - lengths
        first += int(lengths.sum()) + extra
        fillers.append(slice(first - extra, first))
        for rows in split_by_length(lengths, len(lengths), cost):
            own = lengths[rows, None]
            columns = np.arange(own.max())
            is_real = columns < own
            # Padding repeats a token of its own row, so that what is not finite stays there.
            places.append((starts[rows, None] + np.minimum(columns, own - 1)).ravel())
            real.append(is_real.ravel())
            sizes.append(is_real.shape)
            masks.append(None if is_real.all() else moved(is_real[:, None, None]))
    place = np.concatenate(places)
    if np.array_equal(place, np.arange(first)):
        return Groups(sizes, masks)
    token = np.empty(first, dtype=np.int64)
    found = np.flatnonzero(np.concatenate(real))
    token[place[found]] = found
    for behind in fillers:
        token[behind] = token[behind.start - 1]  # filler is whatever the token before it is
    return Groups(sizes, masks, moved(place), moved(token))
