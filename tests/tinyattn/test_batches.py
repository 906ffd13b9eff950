"""Batches against the tokenizer's own padding."""

from __future__ import annotations

import bisect
import itertools
import os
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import transformers

from tinyattn.batches import EVAL_TOKENS, Batches, labels_of, split_by_length
from tinyattn.plm import find_plm
from tinyattn.tasks.base import Task
from tinyattn.tasks.tokens import Split, as_split, tokenise

TASK = Task("t", ("a", "b"), ("no", "yes"), None, ("accuracy",))
SCORES = Task("t", ("a", "b"), None, (0.0, 5.0), ("pearson",))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(find_plm("minilm"))


def split(
    tokenizer: Any, lengths: list[int], task: Task = TASK, labels: list[Any] | None = None
) -> Split:
    """Pairs of `length` words each side."""
    columns: dict[str, Any] = {
        "a": ["one " * n for n in lengths],
        "b": ["two " * n for n in lengths],
    }
    if labels is not None:
        columns["label"] = labels
    rows = datasets.Dataset.from_dict(columns)
    if labels is not None and task.labels is None:
        rows = rows.cast_column("label", datasets.Value("float32"))
    return tokenise(rows, task, tokenizer, 64, name="train")


def test_padded_to_the_longest_of_the_batch_as_the_tokenizer_pads(tokenizer: Any) -> None:
    made = split(tokenizer, [3, 9, 1, 20], labels=[1, 0, 0, 1])
    batches = Batches(made, tokenizer)
    for indices in ([0, 1, 2], [2], [3, 0], [0, 1, 2, 3]):
        batch = batches.batch(np.array(indices))
        rows = [made.rows[i] for i in indices]
        expected = tokenizer.pad(
            {key: [row[key] for row in rows] for key in ("input_ids", "token_type_ids")},
            return_tensors="pt",
        )
        assert batch["labels"].tolist() == [row["label"] for row in rows]
        for key, value in expected.items():
            assert torch.equal(batch[key], value), key
            assert batch[key].dtype == torch.int64


def test_a_selection_of_rows_reads_those_rows(tokenizer: Any) -> None:
    whole = split(tokenizer, [1, 2, 3, 4, 5, 6], labels=[0, 1, 0, 1, 0, 1])
    chosen = as_split(whole.rows, "part", np.array([5, 0, 3]))
    batches = Batches(chosen, tokenizer)
    assert len(batches) == 3
    # [CLS] one*n [SEP] two*n [SEP]
    assert batches.lengths.tolist() == [2 * n + 3 for n in (6, 1, 4)]
    assert batches.batch(np.array([2]))["input_ids"].tolist() == [whole.rows[3]["input_ids"]]
    assert labels_of(chosen).tolist() == [1, 0, 1]


def test_label_types(tokenizer: Any) -> None:
    classes = Batches(split(tokenizer, [1, 2], labels=[1, 0]), tokenizer)
    assert classes.batch(np.array([0]))["labels"].dtype == torch.int64
    scores = Batches(split(tokenizer, [1, 2], SCORES, [2.5, 4.0]), tokenizer)
    assert scores.batch(np.array([0, 1]))["labels"].dtype == torch.float32
    assert scores.labels.tolist() == [2.5, 4.0]
    bare = Batches(split(tokenizer, [1, 2]), tokenizer)
    assert "labels" not in bare.batch(np.array([0]))
    assert bare.labels.size == 0


def test_by_length_gives_every_row_once_within_the_budget(tokenizer: Any) -> None:
    rng = np.random.RandomState(0)
    lengths = rng.randint(1, 31, size=3000).tolist()
    made = split(tokenizer, lengths, labels=rng.randint(0, 2, size=3000).tolist())
    batches = Batches(made, tokenizer)
    seen: list[int] = []
    padded = 0
    for indices, batch in batches.by_length():
        assert batch["input_ids"].numel() <= EVAL_TOKENS
        assert batch["labels"].tolist() == batches.labels[indices].tolist()
        seen += indices.tolist()
        padded += batch["input_ids"].numel()
    assert sorted(seen) == list(range(3000))
    assert padded < 1.1 * batches.lengths.sum()  # in random order: about 1.9


def test_a_row_longer_than_the_budget_comes_alone(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyattn.batches.EVAL_TOKENS", 20)
    batches = Batches(split(tokenizer, [20, 1, 2]), tokenizer)
    assert [indices.tolist() for indices, _ in batches.by_length()] == [[0], [2, 1]]


def gpt2_tokenizer() -> Any:
    data = os.environ.get("TINYATTN_DATA")
    folder = Path(data).parent / "plm" / "gpt2-tokenizer" if data else None
    if folder is None or not folder.is_dir():
        pytest.skip("no GPT-2 tokenizer beside TINYATTN_DATA")
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_gpt2_has_no_pad_token_and_no_segments() -> None:
    tokenizer = gpt2_tokenizer()
    assert tokenizer.pad_token is None
    rows = datasets.Dataset.from_dict({"a": ["Hello there", "Hi", ""], "b": [" you", " a b c", ""]})
    batches = Batches(tokenise(rows, TASK, tokenizer, 16, name="train"), tokenizer)
    batch = batches.batch(np.array([0, 1, 2]))
    assert set(batch) == {"input_ids", "attention_mask"}
    text = tokenizer.decode(batch["input_ids"][0][batch["attention_mask"][0].bool()])
    assert text == "Hello there you"
    assert batch["input_ids"][0, -1] == 0  # this copy names no end token either
    assert batch["attention_mask"].sum(1).tolist() == [3, 4, 1]
    assert tokenizer.pad_token is None


def _cost(lengths: np.ndarray, cuts: list[np.ndarray], overhead: float) -> float:
    return sum(len(cut) * lengths[cut].max() + overhead for cut in cuts)


@pytest.mark.parametrize("overhead", [0.0, 7.0, 32.0, 1e9])
@pytest.mark.parametrize("most", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("seed", range(4))
def test_a_batch_is_split_at_the_least_cost(seed: int, most: int, overhead: float) -> None:
    """Against all 2^8 ways to cut 9 rows that are sorted by length, many of them alike."""
    lengths = np.random.RandomState(seed).choice([3, 4, 11, 40, 90], size=9)
    cuts = split_by_length(lengths, most, overhead)
    assert sorted(np.concatenate(cuts)) == list(range(9))
    assert max(map(len, cuts)) <= most
    order = np.argsort(-lengths)
    others = []
    for chosen in itertools.product([False, True], repeat=8):
        parts = np.split(order, [i + 1 for i, cut in enumerate(chosen) if cut])
        if max(map(len, parts)) <= most:
            others.append(_cost(lengths, parts, overhead))
    assert _cost(lengths, cuts, overhead) == min(others)


def test_a_huge_batch_is_split_by_its_lengths_not_by_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The work grows with the lengths that differ, not with the square of the rows."""
    lengths = np.random.RandomState(0).randint(5, 129, size=20_000)
    tried: list[int] = []
    search = bisect.bisect_left
    monkeypatch.setattr(
        "tinyattn.batches.bisect.bisect_left", lambda *a: tried.append(1) or search(*a)
    )
    cuts = split_by_length(lengths, len(lengths), 32.0)
    assert sum(map(len, cuts)) == 20_000
    assert len(tried) == 2 * 124  # lengths 5 to 128


def test_equal_lengths_are_not_split_and_one_row_is_a_batch() -> None:
    assert [len(cut) for cut in split_by_length(np.full(16, 9), 16, 32.0)] == [16]
    assert [list(cut) for cut in split_by_length(np.array([3]), 16, 32.0)] == [[0]]
