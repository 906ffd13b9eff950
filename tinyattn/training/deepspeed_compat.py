"""What is used of DeepSpeed beyond its public interface, all of it in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_deepspeed_compat.py fails where DeepSpeed changes one.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import Any

import torch

from tinyattn.telemetry import switch_telemetry_off


def import_deepspeed() -> ModuleType:
    """Import DeepSpeed, quiet, and without compiling on a machine without a GPU.

    - `DEEPSPEED_LOG_LEVEL` and `DS_ACCELERATOR` are read when it is imported: it would look for an
      accelerator, and say so. Its logger has handlers of its own. (deepspeed 0.19.8)
    - `deepspeed.ops.__compatible_ops__` names the extensions that it may compile. On a CPU its
      first engine would compile one for shared memory for half a minute, and a kill in mid-build
      leaves a lock on which later trials hang; gloo serves as well. (deepspeed 0.19.8)
    """
    switch_telemetry_off()  # it imports MLflow
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    if on_cpu:
        deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def add_up_with_nobody(engine: Any) -> None:
    """Have the engine of a process by itself not ask other processes for their gradients.

    `enable_backward_allreduce` is an attribute that its configuration does not have.
    (deepspeed 0.19.8)
    """
    engine.enable_backward_allreduce = False


def read_without_executing(engine: Any) -> None:
    """Have an engine read checkpoints without unpickling whatever a file holds.

    `checkpoint_engine.load` is what reads each file; its own way takes any pickle. What its files
    hold beside tensors is named here. (deepspeed 0.19.8)
    """
    engine.checkpoint_engine.load = _read


def _read(path: str, map_location: Any = None) -> Any:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    own = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
    with torch.serialization.safe_globals(own):
        return torch.load(path, map_location=map_location, weights_only=True)
