"""Rows of a split as tensors: padded, or one after the other."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tinyattn.stream import GROUP_COST, TINY_GROUP_COST, Group, Stream, group_rows
from tinyattn.tasks.tokens import Split, pad_id


class Batches:
    """The rows of a split, as flat arrays that batches are cut from.

    Attributes:
        labels: [N] class ids (int64) or scores (float32); empty where the split has none.
        lengths: [N] tokens.
        offsets: [N + 1]: where each row's tokens begin in `columns`.
        columns: what the PLM takes by token, of all rows one after the other.
    """

    def __init__(self, split: Split, tokenizer: PreTrainedTokenizerBase) -> None:
        table = split.rows.with_format("arrow")[:]
        ids = table["input_ids"].combine_chunks()
        self.offsets = ids.offsets.to_numpy()
        self.columns = {"input_ids": ids.values.to_numpy()}
        if "token_type_ids" in table.column_names:
            types = table["token_type_ids"].combine_chunks()
            self.columns["token_type_ids"] = types.values.to_numpy()
        self.lengths: np.ndarray = np.diff(self.offsets)
        self.labels: np.ndarray = (
            table["label"].to_numpy() if "label" in table.column_names else np.empty(0)
        )
        self._pad = {
            "input_ids": pad_id(tokenizer),
            "token_type_ids": tokenizer.pad_token_type_id,
        }

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, indices: np.ndarray) -> dict[str, Tensor]:
        """Return rows padded on the right to the longest: model inputs, and labels where known."""
        lengths = self.lengths[indices]
        shape = (len(indices), int(lengths.max()))
        batch = {
            name: torch.from_numpy(self._padded(name, indices, shape)) for name in self.columns
        }
        mask = np.arange(shape[1])[None, :] < lengths[:, None]
        batch["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
        if len(self.labels):
            batch["labels"] = torch.from_numpy(self.labels[indices])
        return batch

    def _padded(self, name: str, indices: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        padded = np.full(shape, self._pad[name], dtype=np.int64)
        values = self.columns[name]
        for row, index in enumerate(indices):
            first, last = self.offsets[index], self.offsets[index + 1]
            padded[row, : last - first] = values[first:last]
        return padded

    def stream(self, indices: np.ndarray, device: torch.device) -> Stream:
        """Return rows one after the other, in this order; neighbours should be of like lengths."""
        lengths = self.lengths[indices]
        starts = np.cumsum(lengths) - lengths
        positions = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
        tokens = np.repeat(self.offsets[indices], lengths) + positions

        def groups(cost: float) -> list[Group]:
            cuts = split_by_length(lengths, len(lengths), cost)
            return group_rows(lengths, [len(cut) for cut in cuts], device)

        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values.astype(np.int64))[None].to(device, non_blocking=True)

        return Stream(
            inputs={name: tensor(values[tokens]) for name, values in self.columns.items()},
            positions=tensor(positions),
            lengths=lengths,
            groups=groups(GROUP_COST[device.type]),
            tiny_groups=groups(TINY_GROUP_COST[device.type]),
        )


def split_by_length(lengths: np.ndarray, most: int, overhead: float) -> list[np.ndarray]:
    """Cut a batch into micro-batches of similar lengths, so that little of them is padding.

    A gradient is a sum over rows, so any cut gives the same step. The cut chosen costs least, where
    a micro-batch costs its padded tokens and `overhead`.

    Of the cuts within a run of equal lengths the first is never worse than the others: every row
    that moves on to the next micro-batch costs no more there. So only cuts where the length changes
    need be tried, and those that `most` forces; a batch of thousands of rows has few of them.

    Args:
        lengths: [N] tokens of each row.
        most: rows of a micro-batch at most.
        overhead: cost of one more forward and backward pass, in tokens.

    Returns:
        Positions in `lengths`, by micro-batch, longest rows first.
    """
    order = np.argsort(-lengths, kind="stable")
    ranked, rows = lengths[order].tolist(), len(lengths)
    changes = [0, *(np.flatnonzero(np.diff(ranked)) + 1).tolist()]
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}  # rows -> least cost, start of the last cut
    for end in _ends([*changes[1:], rows], most):
        forced = max(0, end - most)
        tried = changes[bisect.bisect_left(changes, forced) : bisect.bisect_left(changes, end)]
        best[end] = min(
            (best[start][0] + (end - start) * ranked[start] + overhead, start)
            for start in {forced, *tried}
        )
    cuts, end = [], rows
    while end > 0:
        start = best[end][1]
        cuts.append(order[start:end])
        end = start
    return cuts[::-1]


def _ends(places: Iterable[int], most: int) -> list[int]:
    """The places, and all that lie a multiple of `most` before one, in ascending order."""
    return sorted({place for last in places for place in range(last, 0, -most)})


@functools.lru_cache(maxsize=8)
def batches_of(split: Split, tokenizer: PreTrainedTokenizerBase) -> Batches:
    """The rows of a split, made once for all trials of a process that use it."""
    return Batches(split, tokenizer)


def labels_of(split: Split) -> np.ndarray:
    """The labels of a labelled split, [N]."""
    return np.asarray(split.rows.with_format("numpy")["label"][:])
