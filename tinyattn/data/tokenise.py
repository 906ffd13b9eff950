"""Tokenising: rows of text to rows of token ids, one for one and in order."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from tinyattn.data.files import quiet_datasets
from tinyattn.data.rows import LABEL
from tinyattn.data.tokens import GROUPS, Split, pad_id
from tinyattn.tasks.base import Task

_NEWLINE, _BAR = "\n", " | "
_PASSES = 8
"""Most rounds in which special tokens that a text spells are broken up."""


@dataclass(frozen=True)
class TokenRules:
    """How texts become tokens. An adapter must be used with the rules it was trained with."""

    version: int
    """1: the tokenizer's own way, where a special token spelt in a text becomes that token. 2: with
    the two fields below, and a special token spelt in a text stays text."""
    types: bool
    """Whether tokens have types (segments), which tell the texts of a pair apart."""
    separator: str | None
    """Text between the two of a pair; None where the tokenizer separates them itself."""


def token_rules(
    tokenizer: PreTrainedTokenizerBase, num_texts: int, version: int, types: bool | None = None
) -> TokenRules:
    """Return the rules of a version for one PLM and kind of task.

    Args:
        tokenizer: the PLM's.
        num_texts: texts of a row.
        version: version of the rules.
        types: whether the PLM has more than one token type; None: as the tokenizer says.
    """
    separator = _separator(tokenizer) if version > 1 and num_texts > 1 else None
    return TokenRules(version, token_types(tokenizer, version, types), separator)


def token_types(tokenizer: PreTrainedTokenizerBase, version: int, types: bool | None) -> bool:
    """Return whether tokens get types: under version 1 as the tokenizer says, else as the PLM."""
    if version == 1 or types is None:
        return "token_type_ids" in tokenizer.model_input_names
    return types


def _separator(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return a separator for pairs; None if the tokenizer has one (`[SEP]`, `</s>`, ...)."""
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in "ab")
    pair, glued = tokenizer("a", "b")["input_ids"], [*first, *second]
    if not any(pair[i : i + len(glued)] == glued for i in range(len(pair))):
        return None
    newline = tokenizer(_NEWLINE, add_special_tokens=False)["input_ids"]
    return _NEWLINE if newline else _BAR  # some tokenizers drop all white space


def tokenise(
    rows: datasets.Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    name: str,
    rules: TokenRules | None = None,
    file: Path | None = None,
) -> Split:
    """Turn checked rows of text into rows of token ids, in their order.

    Args:
        rows: from `read_rows` or `check_rows`.
        task: names the text columns.
        tokenizer: the PLM's.
        max_length: tokens per row.
        name: name of the split.
        rules: from `token_rules`; None: the newest.
        file: Arrow file to write and memory-map; None: the rows stay in memory.
    """
    rules = rules or token_rules(tokenizer, len(task.text_columns), version=2)
    features = {
        "input_ids": datasets.List(datasets.Value("int32")),
        "length": datasets.Value("int32"),
        "truncated": datasets.Value("bool"),
    }
    if rules.types:
        features["token_type_ids"] = datasets.List(datasets.Value("int8"))
    kept = [column for column in (LABEL, GROUPS) if column in rows.column_names]
    features |= {column: rows.features[column] for column in kept}
    with quiet_datasets():
        encoded = rows.map(
            lambda batch: _encode(
                [batch[column] for column in task.text_columns], tokenizer, max_length, rules
            ),
            batched=True,
            remove_columns=[column for column in rows.column_names if column not in kept],
            features=datasets.Features(features),
            cache_file_name=str(file) if file else None,
            keep_in_memory=file is None,
            new_fingerprint="tokenised",  # datasets would pickle the tokenizer to make one
        )
    return as_split(encoded, name)


def as_split(rows: datasets.Dataset, name: str, numbers: np.ndarray | None = None) -> Split:
    """Return tokenised rows, or those with the given numbers, as a Split that counts cut texts."""
    truncated = rows.data.table.column("truncated").to_numpy()
    if numbers is None or len(numbers) == len(rows):
        return Split(rows, name, int(truncated.sum()))
    key = hashlib.sha256(numbers.tobytes()).hexdigest()[:24]
    # Without a fingerprint given, datasets would pickle the numbers to make one.
    chosen = rows.select(numbers, keep_in_memory=True, new_fingerprint=f"rows-{key}")
    return Split(chosen, name, int(truncated[numbers].sum()))


def _encode(
    texts: Sequence[list[str]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    rules: TokenRules,
) -> dict[str, list[Any]]:
    """Tokenise one batch, given as a list of texts for each column."""
    texts = _separated(texts, tokenizer, rules)
    tokens = _tokens(texts, tokenizer, rules, truncation="longest_first", max_length=max_length)
    # A text without tokens (an empty one, in a decoder) becomes one end token: each row has a
    # position to classify.
    ids = [row or [pad_id(tokenizer)] for row in tokens["input_ids"]]
    encoded: dict[str, list[Any]] = {"input_ids": ids, "length": [len(row) for row in ids]}
    encoded["truncated"] = [False] * len(ids)
    full = [i for i, row in enumerate(ids) if len(row) >= max_length]
    if full:
        whole = _tokens([[text[i] for i in full] for text in texts], tokenizer, rules)["input_ids"]
        for i, row in zip(full, whole, strict=True):
            encoded["truncated"][i] = len(row) > max_length
    if rules.types:
        encoded["token_type_ids"] = [row or [0] for row in tokens["token_type_ids"]]
    return encoded


def _separated(
    texts: Sequence[list[str]], tokenizer: PreTrainedTokenizerBase, rules: TokenRules
) -> Sequence[list[str]]:
    """Return pairs with the separator added, at the end that truncation does not cut."""
    if rules.separator is None:
        return texts
    first, second = texts
    if tokenizer.truncation_side == "left":
        return [[text + rules.separator for text in first], second]
    return [first, [rules.separator + text for text in second]]


def _tokens(
    texts: Sequence[list[str]],
    tokenizer: PreTrainedTokenizerBase,
    rules: TokenRules,
    **cut: Any,
) -> dict[str, list[list[int]]]:
    """Tokenise texts; under version 2 no part of a text becomes a special token."""
    options = {"return_attention_mask": False, "verbose": False, **cut}
    if rules.version == 1:
        return dict(tokenizer(*texts, **options))
    options |= {"return_token_type_ids": rules.types, "split_special_tokens": True}
    found = dict(tokenizer(*texts, **options))
    special = _special_tokens(tokenizer)
    most = sum(i in special for i in tokenizer(*["a"] * len(texts))["input_ids"])
    # Vocabularies that hold special tokens as words (Unigram's, a list of words) find them so too.
    whole = [list(text) for text in texts]
    for _ in range(_PASSES):  # what is broken may bring in more from behind a cut
        spelt = [
            row
            for row, ids in enumerate(found["input_ids"])
            if sum(i in special for i in ids) > most
        ]
        if not spelt:
            break
        broken = _broken([[text[row] for row in spelt] for text in whole], tokenizer, special, cut)
        again = tokenizer(*broken, **options)
        for text, own in zip(whole, broken, strict=True):
            for row, value in zip(spelt, own, strict=True):
                text[row] = value
        for key in found:
            for row, values in zip(spelt, again[key], strict=True):
                found[key][row] = values
    return found


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Return id -> text of the special tokens, without one that only stands for unknown text."""
    added = tokenizer.added_tokens_decoder
    special = {number: token.content for number, token in added.items() if token.special}
    special |= dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    marks = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id)
    if tokenizer.unk_token_id not in (*marks, tokenizer.sep_token_id):  # GPT-2's ends a text too
        special.pop(tokenizer.unk_token_id, None)
    return special


def _broken(
    texts: list[list[str]],
    tokenizer: PreTrainedTokenizerBase,
    special: dict[int, str],
    cut: dict[str, Any],
) -> list[list[str]]:
    """Return the texts with a space put into each part that became a special token."""
    if not tokenizer.is_fast:  # which do not say where a token comes from
        return [[_spaced(text, special.values()) for text in column] for column in texts]
    found = tokenizer(
        *texts, return_offsets_mapping=True, split_special_tokens=True, verbose=False, **cut
    )
    broken = [list(column) for column in texts]
    for row, ids in enumerate(found["input_ids"]):
        spans = zip(ids, found.sequence_ids(row), found["offset_mapping"][row], strict=True)
        # From the end on, so that places before stay where they are.
        for column, (start, end) in reversed([(c, span) for i, c, span in spans if i in special]):
            if column is not None:  # else the tokenizer itself has put it there
                text = broken[column][row]
                second = end - len(text[start:end].lstrip()) + 1
                broken[column][row] = f"{text[:second]} {text[second:]}"
    return broken


def _spaced(text: str, words: Iterable[str]) -> str:
    plain = unicodedata.normalize("NFKC", text)  # as tokenizers that look so do
    for word in words:
        plain = plain.replace(word, f"{word[:1]} {word[1:]}")
    return plain


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
