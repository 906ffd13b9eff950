"""Private parts of DeepSpeed that this project uses, all of them in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_deepspeed_compat.py fails where DeepSpeed changes one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn


def import_deepspeed() -> ModuleType:
    """Import DeepSpeed without its log messages, and on a CPU without compiled extensions.

    - It reads `DEEPSPEED_LOG_LEVEL` and `DS_ACCELERATOR` when it is imported; without them it looks
      for an accelerator and logs the search. Its logger has handlers of its own.
      (deepspeed 0.19.8)
    - Its autotuner, which nothing here uses, imports MLflow if it can: half a second in each
      process. Unless that is imported already, it is told that there is none. (deepspeed 0.19.8)
    - `deepspeed.ops.__compatible_ops__` names the extensions that it may compile. On a CPU the
      first engine would spend half a minute on one for shared memory, and a kill during the build
      leaves a lock on which later trials hang. gloo does without it. (deepspeed 0.19.8)
    """
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    without_mlflow = "mlflow" not in sys.modules
    if without_mlflow:
        sys.modules["mlflow"] = None  # type: ignore[assignment]  # so an import of it fails
    try:
        import deepspeed
        import deepspeed.ops
        from deepspeed.utils import logger
    finally:
        if without_mlflow and sys.modules.get("mlflow") is None:
            sys.modules.pop("mlflow", None)  # another thread may have done so

    logger.setLevel(logging.ERROR)
    if on_cpu:
        deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def whole_size(weight: Tensor) -> int:
    """Return how many numbers a weight has; one that is split between ranks is empty here.

    ZeRO 3 leaves the size of a weight that it splits in its attribute `ds_numel`, which no page
    documents. (deepspeed 0.19.8)
    """
    size: int = getattr(weight, "ds_numel", weight.numel())
    return size


def parameter_count(module: nn.Module) -> int:
    """Return how many numbers a module's weights have, those split between ranks included."""
    return sum(map(whole_size, module.parameters()))


@contextlib.contextmanager
def linear_kept_to(plm: nn.Module) -> Iterator[None]:
    """Let only the PLM that the block splits multiply in the way that ZeRO 3 needs.

    `zero.Init` replaces `torch.nn.functional.linear`, and leaves it so, by a function that saves no
    gathered weight for the backward pass and rounds elsewhere: in bf16, whatever a process trained
    or predicted after it would have other bits. Here the PLM's `nn.Linear` modules get it for
    themselves; modules that call the function on weights of their own save them whole.
    (deepspeed 0.19.8)
    """
    before = nn.functional.linear
    try:
        yield
    finally:
        nn.functional.linear = before
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    for module in plm.modules():
        if type(module).forward is nn.Linear.forward:
            module.forward = functools.partial(_multiply, zero3_linear_wrap, module)


def _multiply(linear: Any, module: Any, input: Tensor) -> Tensor:
    found: Tensor = linear(input, module.weight, module.bias)
    return found


def add_up_with_nobody(engine: Any) -> None:
    """Switch off the all-reduce of gradients in the engine of a trial that has one process.

    The attribute `enable_backward_allreduce` has no counterpart in the configuration.
    (deepspeed 0.19.8)
    """
    engine.enable_backward_allreduce = False


def read_without_executing(engine: Any) -> None:
    """Make an engine read checkpoints without executing anything in them (`weights_only`).

    `checkpoint_engine.load` reads each file, and by default unpickles any object. `_read` allows
    tensors and the few classes that DeepSpeed's own files contain. (deepspeed 0.19.8)
    """
    engine.checkpoint_engine.load = _read


def _read(path: str, map_location: Any = None) -> Any:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    own = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
    with torch.serialization.safe_globals(own):
        return torch.load(path, map_location=map_location, weights_only=True)
