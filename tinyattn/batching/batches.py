"""Batches: the rows of a split as tensors, padded or packed one after the other."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tinyattn.batching.packed_sequence import PackedSequence
from tinyattn.data.tokens import Rows, pad_id
from tinyattn.files.mmap_cache import kept_file

_WORTH_A_FILE = 2**20
"""Bytes from which a column goes into a file that processes share; smaller ones are copied."""


class Batches:
    """The tokenised rows of a split, as flat arrays from which batches are made.

    Attributes:
        labels: [N] class ids (int64) or scores (float32); empty where the split has none.
        lengths: [N] number of tokens of each row.
        offsets: [N + 1] index in `columns` of each row's first token, and of the end.
        columns: the PLM's inputs by name (token ids, token types), [all tokens], row after row.
    """

    def __init__(self, split: Rows, tokenizer: PreTrainedTokenizerBase) -> None:
        flat = split.flat()
        self.columns = dict(flat.columns)
        self.offsets, self.labels = flat.offsets, flat.labels
        self.lengths: np.ndarray = np.diff(self.offsets)
        self._pad = {
            "input_ids": pad_id(tokenizer),
            "token_type_ids": tokenizer.pad_token_type_id,
        }

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, indices: np.ndarray) -> dict[str, Tensor]:
        """Return a padded batch: PLM inputs [B, T], `attention_mask`, and `labels` [B] if known.

        Rows are padded on the right to the longest of them.
        """
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

    def stream(self, indices: np.ndarray, device: torch.device) -> PackedSequence:
        """Return rows as a packed sequence, in the order of `indices`."""
        lengths = self.lengths[indices]
        starts = np.cumsum(lengths) - lengths
        positions = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
        tokens = np.repeat(self.offsets[indices], lengths) + positions

        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values.astype(np.int64))[None].to(device, non_blocking=True)

        return PackedSequence(
            inputs={name: tensor(values[tokens]) for name, values in self.columns.items()},
            positions=tensor(positions),
            lots=(lengths,),
        )


def batches_of(split: Rows, tokenizer: PreTrainedTokenizerBase) -> Batches:
    """Make the Batches of a split; `ModelCache.batches_of` keeps them for a process's trials.

    Large columns are memory-mapped files in the cache, so that the processes of a machine share one
    copy.
    """
    batches = Batches(split, tokenizer)
    batches.columns = {name: _shared(values) for name, values in batches.columns.items()}
    return batches


def _shared(values: np.ndarray) -> np.ndarray:
    """Return the values memory-mapped from a cache file; as they are if small or without room."""
    if values.nbytes < _WORTH_A_FILE:
        return values
    content = np.ascontiguousarray(values).view(np.uint8)
    name = f"tokens-{hashlib.blake2b(content.data, digest_size=16).hexdigest()}"

    def write(file: BinaryIO) -> None:
        file.write(content.data)

    try:
        found = kept_file(name, content.nbytes, write)
    except OSError:  # training works with a copy too, which only takes more memory
        return values
    return values if found is None else found.numpy().view(values.dtype)


def labels_of(split: Rows) -> np.ndarray:
    """Return the labels of a labelled split, [N]."""
    return split.flat().labels


def groups_of(split: Rows) -> np.ndarray:
    """Return the group of each row, [N]; permutation tests swap the rows of a group together."""
    return split.flat().groups


def epoch_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """Return a uniformly random order of `num_rows` rows, the same for the same seed and epoch."""
    # RandomState, because its streams never change with the version of numpy.
    return np.random.RandomState([seed, epoch]).permutation(num_rows)
