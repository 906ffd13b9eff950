"""Turns rows of text into rows of token ids, one for one and in order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from tinyattn.tasks.base import Task
from tinyattn.tasks.files import quiet_datasets
from tinyattn.tasks.rows import GROUPS, LABEL
from tinyattn.tasks.tokens import Split, pad_id


def tokenise(
    rows: datasets.Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    name: str,
    file: Path | None = None,
) -> Split:
    """Turn checked rows of text into rows of token ids, in their order.

    Args:
        rows: from `read_rows` or `check_rows`.
        task: names the text columns.
        tokenizer: the PLM's.
        max_length: tokens per row.
        name: name of the split.
        file: Arrow file to write and memory-map; None: the rows stay in memory.
    """
    features = {
        "input_ids": datasets.List(datasets.Value("int32")),
        "length": datasets.Value("int32"),
        "truncated": datasets.Value("bool"),
    }
    if "token_type_ids" in tokenizer.model_input_names:
        features["token_type_ids"] = datasets.List(datasets.Value("int8"))
    kept = [column for column in (LABEL, GROUPS) if column in rows.column_names]
    features |= {column: rows.features[column] for column in kept}
    with quiet_datasets():
        encoded = rows.map(
            lambda batch: _encode(batch, task.text_columns, tokenizer, max_length),
            batched=True,
            remove_columns=[column for column in rows.column_names if column not in kept],
            features=datasets.Features(features),
            cache_file_name=str(file) if file else None,
            keep_in_memory=file is None,
            new_fingerprint="tokenised",  # datasets would pickle the tokenizer to make one
        )
    return as_split(encoded, name)


def as_split(rows: datasets.Dataset, name: str, numbers: np.ndarray | None = None) -> Split:
    """Return tokenised rows, or those with the given numbers, as a split that counts its cuts."""
    truncated = rows.data.table.column("truncated").to_numpy()
    if numbers is None or len(numbers) == len(rows):
        return Split(rows, name, int(truncated.sum()))
    key = hashlib.sha256(numbers.tobytes()).hexdigest()[:24]
    # Without a fingerprint given, datasets would pickle the numbers to make one.
    chosen = rows.select(numbers, keep_in_memory=True, new_fingerprint=f"rows-{key}")
    return Split(chosen, name, int(truncated[numbers].sum()))


def _encode(
    batch: Mapping[str, list[str]],
    columns: tuple[str, ...],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> dict[str, list[Any]]:
    """Tokenise one batch of texts or pairs."""
    texts = [batch[column] for column in columns]
    options = {"return_attention_mask": False, "verbose": False}
    tokens = tokenizer(*texts, truncation="longest_first", max_length=max_length, **options)
    # A text without tokens (an empty one, in a decoder) becomes one end token: each row has a
    # position to classify.
    ids = [row or [pad_id(tokenizer)] for row in tokens["input_ids"]]
    encoded: dict[str, list[Any]] = {"input_ids": ids, "length": [len(row) for row in ids]}
    encoded["truncated"] = [False] * len(ids)
    full = [i for i, row in enumerate(ids) if len(row) >= max_length]
    if full:
        whole = tokenizer(*[[text[i] for i in full] for text in texts], **options)["input_ids"]
        for i, row in zip(full, whole, strict=True):
            encoded["truncated"][i] = len(row) > max_length
    if "token_type_ids" in tokenizer.model_input_names:
        encoded["token_type_ids"] = [row or [0] for row in tokens["token_type_ids"]]
    return encoded


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return 16 hex digits that change when the tokenizer may give other ids."""
    if tokenizer.is_fast:
        state = tokenizer.backend_tokenizer.to_str()
        # Before the added tokens stand truncation and padding, which every call sets anew.
        vocabulary = state[state.index('"added_tokens"') :]
    else:
        vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    kind = [type(tokenizer).__name__, tokenizer.model_input_names, tokenizer.truncation_side]
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    content = json.dumps([kind, special, vocabulary], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
