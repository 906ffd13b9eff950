"""What is used of transformers beyond its public interface, all of it in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_transformers_compat.py fails where transformers changes one.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations import peft
from transformers.models.auto import auto_factory
from transformers.pytorch_utils import Conv1D

_WEIGHTS_ALONE = contextvars.ContextVar("weights_alone", default=False)


@contextlib.contextmanager
def without_adapters() -> Iterator[None]:
    """Within the block this thread's `from_pretrained` loads weights and applies no adapter.

    Where peft is installed it looks for adapter_config.json beside the weights, for which there is
    no switch. Both modules that look have `find_adapter_config_file` as a name of their own.
    (transformers 5.11, 5.23)
    """
    modules: tuple[Any, ...] = (auto_factory, peft)
    for module in modules:
        if not hasattr(module.find_adapter_config_file, "__wrapped__"):
            module.find_adapter_config_file = _unless_alone(module.find_adapter_config_file)
    token = _WEIGHTS_ALONE.set(True)
    try:
        yield
    finally:
        _WEIGHTS_ALONE.reset(token)


def _unless_alone(find: Callable[..., str | None]) -> Callable[..., str | None]:
    @functools.wraps(find)
    def found(*args: Any, **options: Any) -> str | None:
        return None if _WEIGHTS_ALONE.get() else find(*args, **options)

    return found


@contextlib.contextmanager
def attention_named(plm: PreTrainedModel, name: str) -> Iterator[None]:
    """Within the block a PLM calls the registered attention of that name.

    The public `set_attn_implementation` refuses names that a PLM's class does not list, and loads
    kernels; attention modules read `config._attn_implementation` as they run. (transformers 5.11,
    5.23)
    """
    config: Any = plm.config
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before


def choose_plain_attention(config: PretrainedConfig) -> None:
    """Let a PLM of this configuration compute attention by torch alone.

    A config.json may name a package or a repository of kernels, which transformers loads: code. The
    setting is public as an argument of `from_pretrained`, whose None leaves what the file says.
    (transformers 5.11, 5.23)
    """
    named: Any = config
    if named._attn_implementation not in (None, "eager", "sdpa"):
        named._attn_implementation = None


def revision_of(plm: PreTrainedModel) -> str | None:
    """Return the hub's commit from which a PLM was loaded; None: it came from a folder.

    `from_pretrained` leaves it in the configuration alone (transformers 5.11), or nowhere
    (transformers 5.23): then the cache, from which it read the files, names the commit.
    """
    revision: str | None = getattr(plm.config, "_commit_hash", None)
    name = plm.name_or_path
    if revision is None and name and not Path(name).is_dir():
        file = try_to_load_from_cache(name, "config.json")
        revision = Path(file).parent.name if isinstance(file, str) else None
    return revision


def product_weight(module: nn.Module) -> Tensor | None:
    """Return the weight [outputs, inputs] of a matrix product; None: the module is none.

    GPT-2's products are a `Conv1D`, documented as an internal helper, whose weight is transposed.
    (transformers 5.11, 5.23)
    """
    if isinstance(module, nn.Linear):
        return module.weight
    return module.weight.t() if isinstance(module, Conv1D) else None


def kept_in_fp32(plm: PreTrainedModel) -> set[str]:
    """Return the names of modules that a PLM's class keeps in fp32, which are never quantized.

    A class names them in a private attribute, as T5's `wo`. (transformers 5.11, 5.23)
    """
    return set(plm._keep_in_fp32_modules or ())


def further_layer(cache: Any, index: int) -> DynamicLayer:
    """Return the layer of a generation cache at an index, made if it is behind the PLM's own.

    The list `cache.layers` and its `DynamicLayer` are documented as internal helpers; that a cache
    may have more layers than its PLM is not documented at all. Whatever reorders or crops a cache
    goes through all of its layers. (transformers 5.11, 5.23)
    """
    while len(cache.layers) <= index:
        cache.layers.append(DynamicLayer())
    found: DynamicLayer = cache.layers[index]
    return found
