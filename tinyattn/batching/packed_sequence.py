"""PackedSequence: rows of a batch one after the other without padding, each attending to itself.

A padded batch [B, T] becomes a stream [1, N], where N is the number of its real tokens. Layers that
work token by token (embeddings, norms, feed-forward nets) run on it unchanged. Attention, of
adapters and, for most PLMs, of the PLM (`plms/packed_attention.py`), runs on groups of rows of
similar lengths, which are gathered into padded and masked batches. Results equal those of the
padded batch. `AdaptedModel.can_stream` finds out whether a PLM takes packed sequences.

Shape suffixes: B rows, T tokens of the longest row, N tokens of the stream, P places of its groups,
H hidden size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tinyattn.batching.length_buckets import split_by_length

Attend = Callable[..., Tensor]
"""Attention on padded rows: key mask [B, 1, 1, T] or None, inputs [B, T, C] → [B, T, C']."""
GROUP_COST = {"cpu": 32.0, "cuda": 8192.0}
"""Cost of one more call of the PLM's attention, in padded tokens. Measured with MiniLM on a CPU; on
a GPU it is the launch of kernels."""
TINY_GROUP_COST = {"cpu": 256.0, "cuda": 8192.0}
"""Cost of one more call of an adapter's attention, in padded tokens; a padded token costs an
adapter less than the PLM, so a call costs more of them."""
TOKEN_STEP, SHORT, SHORT_STEP = 8, 128, 4
"""Filler makes a stream's length a multiple of TOKEN_STEP; up to SHORT tokens, for which that would
be too much filler, of SHORT_STEP."""
LEAST_TOKENS = 16
"""Least length of a stream, with filler. For matrices of fewer rows (tokens) MKL uses other fp32
kernels, whose rounding differs from that in a longer pass shared with other trials."""
_TYPES = "token_type_ids"


@dataclass(frozen=True)
class Groups:
    """Groups of rows of similar lengths; the rows of a group attend in one call, each to itself.

    Each group is padded to its longest row; together the groups have P places.

    Attributes:
        sizes: rows and padded length of each group.
        masks: of each group, [B, 1, 1, T]: True at places that hold real tokens; None: all do.
        place: [P] index of the token that goes to each place; None: the places are the stream.
        token: [N] index of the place of each token; None: as `place`.
        row: [B] index of each row among the rows of all groups; None: as `place`.
    """

    sizes: list[tuple[int, int]]
    masks: list[Tensor | None]
    place: Tensor | None = None
    token: Tensor | None = None
    row: Tensor | None = None


@dataclass(frozen=True)
class PackedSequence:
    """Rows of one or several trials, one after the other, with filler tokens behind each trial's.

    Attributes:
        inputs: the PLM's inputs, each [1, N]: input_ids, perhaps token_type_ids.
        positions: [1, N] position of each token in its row, from 0.
        lots: tokens of each row, one array (lot) for each trial. Trials attend in groups of their
            own, so that rounding is as it is without the others.
        start: number of the PLM's layer calls that are skipped: `hidden` is their output.
        hidden: [1, N, H] output of the skipped layers; None: none is skipped.
        filler: number of filler tokens behind each lot, copies of the token before them.
        chunks: number of chunks of each labelled row of one trial; the rows of this sequence are
            its chunks then. None: rows are not cut, or those of several trials are joined.
        words: places of the tokens that are the first of a word that has a label. None: words have
            none, or as `chunks`.
        targets: number of last tokens of each row that a causal LM scores, [B]. None: none is, or
            as `chunks`.
    """

    inputs: dict[str, Tensor]
    positions: Tensor
    lots: tuple[np.ndarray, ...]
    start: int = 0
    hidden: Tensor | None = None
    filler: tuple[int, ...] = (0,)
    chunks: np.ndarray | None = None
    targets: np.ndarray | None = None
    words: np.ndarray | None = None

    @property
    def tokens(self) -> int:
        """N, the number of tokens with filler."""
        return self.positions.shape[1]

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, [B]."""
        return np.concatenate(self.lots)

    @functools.cached_property
    def groups(self) -> Groups:
        """The groups for the PLM's attention."""
        return self._grouped(GROUP_COST)

    @functools.cached_property
    def tiny_groups(self) -> Groups:
        """The groups for an adapter's attention."""
        return self._grouped(TINY_GROUP_COST)

    def _grouped(self, cost: Mapping[str, float]) -> Groups:
        device = self.positions.device
        return group_rows(self.lots, self.filler, cost[device.type], device)

    @functools.cached_property
    def bounds(self) -> Tensor:
        """Positions where each row begins and the last one ends, int32 [B + 1]; without filler."""
        assert not any(self.filler), "only streams on a CPU have filler"
        bounds = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        return torch.from_numpy(bounds).to(self.positions.device, non_blocking=True)

    def edges(self, last: bool) -> Tensor:
        """Return the position in the stream of each row's first token, or its last, [B]."""
        before = np.cumsum([0, *self.filler[:-1]])
        ends = np.cumsum(self.lengths) + np.repeat(before, [len(lot) for lot in self.lots])
        return torch.from_numpy(ends - 1 if last else ends - self.lengths)

    def spread(self, values_B: Tensor) -> Tensor:
        """Repeat each row's value for all its tokens, [B] → [N, 1]; filler belongs to the row."""
        tokens = [lot.copy() for lot in self.lots]
        for lot, behind in zip(tokens, self.filler, strict=True):
            lot[-1] += behind
        times = torch.from_numpy(np.concatenate(tokens)).to(values_B.device, non_blocking=True)
        return values_B.repeat_interleave(times, output_size=self.tokens)[:, None]

    def filled(self, filler: int) -> PackedSequence:
        """Return the sequence with `filler` more filler tokens behind its last lot."""
        if filler == 0:
            return self
        there = torch.arange(self.tokens + filler, device=self.positions.device)
        there = there.clamp(max=self.tokens - 1)
        return replace(
            self,
            inputs={name: values[:, there] for name, values in self.inputs.items()},
            positions=self.positions[:, there],
            hidden=None if self.hidden is None else self.hidden[:, there],
            filler=(*self.filler[:-1], self.filler[-1] + filler),
        )


def attend_in(groups: Groups, attend: Attend, *inputs_NC: Tensor) -> Tensor:
    """Run `attend` group by group; inputs and result are [N, C], for all tokens of the stream."""
    found = [own.flatten(0, 1) for own in _each(groups, attend, inputs_NC)]
    whole = found[0] if len(found) == 1 else torch.cat(found)
    return whole if groups.token is None else whole.index_select(0, groups.token)


def rows_in(groups: Groups, pool: Attend, x_NC: Tensor) -> Tensor:
    """Run `pool` group by group, each [B, T, C] → [B, C]; return [B, C], for all rows in order."""
    found = _each(groups, pool, (x_NC,))
    whole = found[0] if len(found) == 1 else torch.cat(found)
    return whole if groups.row is None else whole.index_select(0, groups.row)


def _each(groups: Groups, run: Attend, inputs_NC: Sequence[Tensor]) -> list[Tensor]:
    """Return what `run` makes of the padded rows of each group."""
    places = [rows * length for rows, length in groups.sizes]
    inputs = [x if groups.place is None else x.index_select(0, groups.place) for x in inputs_NC]
    own = zip(*(x.split(places) for x in inputs), strict=True)
    return [
        run(mask, *(x.unflatten(0, size) for x in parts))
        for size, mask, parts in zip(groups.sizes, groups.masks, own, strict=True)
    ]


def joined(streams: Sequence[PackedSequence]) -> PackedSequence:
    """Concatenate packed sequences that have the same `start`.

    If only some have token types, the others get type 0, the PLM's default.

    Raises:
        ValueError: a sequence lacks another input that others have.
    """
    if len(streams) == 1:
        return streams[0]
    names = {name: values for stream in streams for name, values in stream.inputs.items()}
    for stream in streams:
        if missing := names.keys() - stream.inputs.keys() - {_TYPES}:
            lacking = ", ".join(sorted(missing))
            raise ValueError(f"a packed sequence lacks {lacking}, which others have")
    hidden = [stream.hidden for stream in streams if stream.hidden is not None]
    return PackedSequence(
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
    """Return how many filler tokens a trial's stream of `tokens` tokens gets.

    On a CPU in bf16, oneDNN compiles and keeps a kernel for each shape, at some ms and 100 KB, so
    filler reduces the number of different lengths. In fp32 it lengthens short streams to
    LEAST_TOKENS. The number depends on this trial's tokens alone, so that its results do not depend
    on the trials that share its passes.
    """
    if plm.device.type != "cpu":
        return 0
    if torch.finfo(plm.dtype).bits >= 32:
        return max(0, LEAST_TOKENS - tokens)
    return -tokens % (TOKEN_STEP if tokens > SHORT else SHORT_STEP)


def group_rows(
    lots: Sequence[np.ndarray], filler: Sequence[int], cost: float, device: torch.device
) -> Groups:
    """Divide the rows of each lot into groups of similar lengths, by `split_by_length`.

    Args:
        lots: number of tokens of each row of a stream, by lot.
        filler: number of filler tokens behind each lot.
        cost: cost of one more group, in padded tokens.
        device: device of the stream.
    """

    def moved(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    places, real, sizes, masks, fillers, order = [], [], [], [], [], []
    first = before = 0
    for lengths, extra in zip(lots, filler, strict=True):
        starts = first + np.cumsum(lengths) - lengths
        first += int(lengths.sum()) + extra
        fillers.append(slice(first - extra, first))
        for rows in split_by_length(lengths, len(lengths), cost):
            order.append(before + rows)
            own = lengths[rows, None]
            columns = np.arange(own.max())
            is_real = columns < own
            # Padding repeats its own row's last token: NaN in one row cannot reach another.
            places.append((starts[rows, None] + np.minimum(columns, own - 1)).ravel())
            real.append(is_real.ravel())
            sizes.append(is_real.shape)
            masks.append(None if is_real.all() else moved(is_real[:, None, None]))
        before += len(lengths)
    place = np.concatenate(places)
    if np.array_equal(place, np.arange(first)):
        return Groups(sizes, masks)
    token = np.empty(first, dtype=np.int64)
    found = np.flatnonzero(np.concatenate(real))
    token[place[found]] = found
    for behind in fillers:
        token[behind] = token[behind.start - 1]  # filler copies the token before it
    row = np.argsort(np.concatenate(order))
    return Groups(sizes, masks, moved(place), moved(token), moved(row))
