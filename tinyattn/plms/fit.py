"""Whether a PLM's files fit together: weights and configuration, tokens and embeddings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tinyattn.errors import PlmError

_SHOWN = 6
"""Most modules, weights or tokens that a message names."""
_LM_HEADS = {
    "cls", "lm_head", "lm_predictions", "mask_predictions", "predictions", "embed_out",
    "generator_lm_head", "generator_predictions", "discriminator_predictions", "sop_classifier",
    "vocab_transform", "vocab_layer_norm", "vocab_projector", "head", "decoder",
}  # fmt: skip
"""Heads of pretraining beside a base model, of which `lm_head_of` loads what a pattern needs."""
_BUFFERS = re.compile(r"(^|\.)(position_ids|inv_freq|masked_bias)$")
"""Constants that files of old versions hold."""
_IN_ROWS = ("bos", "eos", "unk", "sep", "cls", "mask")
"""Special tokens that a row can hold. Others that a tokenizer has names for stand for images and
sounds, or pad; a text that spells them stays text."""


def refuse_other_weights(info: Mapping[str, Any], name: str) -> None:
    """Refuse files whose weights are not those of the configuration.

    Args:
        info: loading info of `from_pretrained` with `ignore_mismatched_sizes`.
        name: the PLM's, for messages.

    Raises:
        PlmError: sizes differ, or weights other than a pooler's are missing.
    """
    if differ := sorted(info["mismatched_keys"]):
        sizes = _listed(
            f"{key} is {_size(came)}, the config wants {_size(wanted)}"
            for key, came, wanted in differ
        )
        raise PlmError(
            f"PLM '{name}': {len(differ)} of the weights in its files do not have the size that "
            f"its config.json says: {sizes}; restore the config.json that was saved with them"
        )
    if missing := missing_weights(info):
        raise PlmError(
            f"PLM '{name}': its weight file lacks {len(missing)} weights "
            f"({_listed(_modules(missing))}), which would be random; use a complete copy, or the "
            "config.json that was saved with the weights"
        )


def missing_weights(info: Mapping[str, Any]) -> list[str]:
    """Return the names of weights that files lack, without a pooler's: nothing reads it."""
    return sorted(key for key in info["missing_keys"] if not is_pooler(key))


def is_pooler(key: str) -> bool:
    """Whether a weight of this name is a pooler's, which checkpoints often lack."""
    return "pooler." in key


def left_out(info: Mapping[str, Any], plm: PreTrainedModel, name: str) -> list[str]:
    """Return the remark on weights in a PLM's files that its configuration lacks, if there are any.

    A head of pretraining is not remarked on.

    Args:
        info: loading info of `from_pretrained`.
        plm: the base model.
        name: the PLM's.
    """
    own = {module for module, _ in plm.named_children()}
    others = []
    for key in sorted(info["unexpected_keys"]):
        path = key.removeprefix(f"{plm.base_model_prefix}.")
        first = path.partition(".")[0]
        if (first in own or first not in _LM_HEADS) and not _BUFFERS.search(path):
            others.append(path)
    if not others:
        return []
    return [
        f"PLM '{name}': {len(others)} weights of its files have no place in the model of its "
        f"config.json and were left out: {_listed(_modules(others))}"
    ]


def fit_tokens(tokenizer: PreTrainedTokenizerBase, rows: int, name: str) -> list[str]:
    """Check that the embeddings have a row for each token that a row of data can hold.

    A padding token that they do not have is taken from the tokenizer: padded places are masked, so
    another one does as well.

    Args:
        tokenizer: the PLM's.
        rows: rows of the PLM's input embeddings.
        name: the PLM's, for messages.

    Returns:
        A remark on each token without a row that no row of data holds.

    Raises:
        PlmError: another token has none.
    """
    beyond = {token: own for token, own in tokenizer.get_vocab().items() if own >= rows}
    named: dict[str, Any] = dict(tokenizer.special_tokens_map)
    held = {str(named.get(f"{kind}_token")) for kind in _IN_ROWS}
    spare = {str(token): kind for kind, token in named.items()}
    wrong = {token: own for token, own in beyond.items() if token in held or token not in spare}
    if wrong:
        raise PlmError(_message(wrong, max(beyond.values()) + 1, rows, name))
    found = []
    for token, own in beyond.items():
        said = f"PLM '{name}': {spare[token]} {token!r} has the id {own}, and the input embeddings "
        said += f"{rows:,} rows: "
        if spare[token] == "pad_token":
            tokenizer.pad_token = end = tokenizer.eos_token
            instead = "id 0" if end is None else repr(str(end))
            found.append(f"{said}rows are padded by {instead} instead, which is masked too")
        else:
            found.append(f"{said}no text becomes this token")
    return found


def _message(wrong: dict[str, int], wanted: int, rows: int, name: str) -> str:
    shown = sorted(wrong.items(), key=lambda item: item[1])
    listed = _listed(f"{token!r} (id {own})" for token, own in shown)
    return (
        f"PLM '{name}': its tokenizer has tokens that its input embeddings of {rows:,} rows (ids 0 "
        f"to {rows - 1:,}) do not have: {listed}; add rows by "
        f"model.resize_token_embeddings({wanted}), train them and save the model with "
        "save_pretrained, or take the tokens out of the tokenizer"
    )


def _modules(keys: Collection[str]) -> list[str]:
    """Return weights by module, up to the layer's number, as in `encoder.layer.5 (16)`."""
    counts: dict[str, int] = {}
    for key in keys:
        parts = key.split(".")
        number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
        module = ".".join(parts[: len(parts) - 1 if number is None else number + 1]) or key
        counts[module] = counts.get(module, 0) + 1
    return [f"{module} ({count})" if count > 1 else module for module, count in counts.items()]


def _listed(words: Iterable[str]) -> str:
    found = list(words)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _size(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))
