"""TrainConfig to DeepSpeed engine; the only home of deepspeed.

The engine sees the frozen PLM with its adapter. Only adapter and classifier are trainable, always
in fp32, so it runs DeepSpeed's fp32 path whatever the PLM's format: no casts, no loss scale, and a
bf16 PLM serves fp32 adapters. Gradients accumulate over as many backward passes as the caller
makes before `step()`, so a short last batch needs no special case.
"""

from __future__ import annotations

import atexit
import functools
import gc
import logging
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import get_scheduler

from tinyattn.config import OptimizerConfig, TrainConfig
from tinyattn.errors import ConfigError, DamagedError
from tinyattn.ranks import ONE, Ranks, use_interface_of

_TAG = "state"


def build_engine(
    model: nn.Module, config: TrainConfig, total_steps: int, ranks: Ranks = ONE
) -> Any:
    """Wrap `model` in a DeepSpeed engine with the optimizer and schedule of `config`.

    The engine clips and clears the gradients of all that `model` holds: of one trial.
    """
    deepspeed = _deepspeed(ranks)
    optimizer = build_optimizer(model.named_parameters(), config.optimizer)
    scheduler = get_scheduler(
        "constant_with_warmup"
        if config.optimizer.schedule == "constant"
        else config.optimizer.schedule,
        optimizer,
        num_warmup_steps=warmup_steps(config.optimizer.warmup, total_steps),
        num_training_steps=total_steps,
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=deepspeed_config(config, ranks.size),
    )
    if ranks.size == 1 and config.zero_stage == 0:
        engine.enable_backward_allreduce = False  # there is nobody to add gradients up with
    return engine


def shard(plm: nn.Module, ranks: Ranks) -> None:
    """Split a frozen PLM's weights between the ranks, in place (ZeRO 3).

    From then on a layer's weights are whole only while it runs, forward or backward, and all ranks
    must run it together. Trials come and go without the PLM being split anew.
    """
    deepspeed = _deepspeed(ranks)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    # One weight after the other goes to the device: the whole PLM may not fit there.
    deepspeed.zero.Init(module=plm, config_dict_or_path=config)
    deepspeed.initialize(model=plm, config=config)  # hooks that gather and let go


def deepspeed_config(config: TrainConfig, ranks: int = 1) -> dict[str, Any]:
    """The DeepSpeed configuration of a trial.

    At stage 3 the PLM is split by `shard`, once for all trials of a process; the adapter, small
    beside it, which each layer would have to gather, stays whole.
    """
    return {
        "train_micro_batch_size_per_gpu": -(-config.batch_size // ranks),
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.optimizer.max_grad_norm,
        "zero_optimization": {"stage": min(config.zero_stage, 2)},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
        "timers": {"throughput": {"enabled": False}},  # it waits for the GPU twice a step
    }


def build_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig
) -> torch.optim.Optimizer:
    """AdamW or RAdam (decoupled decay) over the trainable parameters."""
    trainable = [(name, p) for name, p in parameters if p.requires_grad]
    spared = [
        p for name, p in trainable if not config.decay_bias_and_norm and _is_bias_or_norm(name)
    ]
    decayed = [p for _, p in trainable if not any(p is other for other in spared)]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "radam":
        return torch.optim.RAdam(groups, lr=config.lr, decoupled_weight_decay=True)
    return torch.optim.AdamW(groups, lr=config.lr, fused=True)


def _is_bias_or_norm(name: str) -> bool:
    return name.endswith("bias") or ".norm." in name


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Steps of warm-up: a share of all steps below 1, a number of steps from 1 on.

    Raises:
        ConfigError: it would take all steps, so that the learning rate never reaches its peak.
    """
    steps = round(warmup * total_steps) if warmup < 1 else int(warmup)
    if steps and steps >= total_steps:
        raise ConfigError(
            f"optimizer.warmup is {warmup:g}: {steps:,} steps of warm-up came, training has "
            f"{total_steps:,} in all; allowed are fewer, or a share such as optimizer.warmup=0.1"
        )
    return steps


def save_optimizer(engine: Any, folder: Path, zero_stage: int) -> dict[str, Any]:
    """Return optimizer and schedule state; under ZeRO the optimizer goes into files of its own."""
    state: dict[str, Any] = {"schedule": engine.lr_scheduler.state_dict()}
    if zero_stage == 0:
        state["optimizer"] = engine.optimizer.state_dict()
    else:
        engine.save_checkpoint(str(folder), tag=_TAG, exclude_frozen_parameters=True)
    return state


def load_optimizer(engine: Any, folder: Path, zero_stage: int, state: dict[str, Any]) -> None:
    """Undo `save_optimizer`; DamagedError: a file of the optimizer's is missing or damaged."""
    if zero_stage == 0:
        engine.optimizer.load_state_dict(state["optimizer"])
    else:
        engine.checkpoint_engine.load = _read_without_executing
        try:
            engine.load_checkpoint(
                str(folder), tag=_TAG, load_module_strict=False, load_lr_scheduler_states=False
            )
        except FileNotFoundError as error:
            raise DamagedError(f"{error.filename or folder}: is not there") from None
        except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
            raise DamagedError(f"{folder}: its optimizer cannot be read: {error}") from None
    engine.lr_scheduler.load_state_dict(state["schedule"])


def _read_without_executing(path: str, map_location: Any = None) -> Any:
    """In the place of DeepSpeed's own way, which unpickles whatever a file holds."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    own = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
    with torch.serialization.safe_globals(own):
        return torch.load(path, map_location=map_location, weights_only=True)


@functools.cache
def _deepspeed(ranks: Ranks) -> Any:
    """Import DeepSpeed and prepare this process for it, once."""
    for key, value in {
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.size),
        "LOCAL_RANK": "0",  # a process sees its own GPU only
    }.items():
        os.environ[key] = value  # a shell or pod may have others
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else it looks for one, and says so
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    if not torch.cuda.is_available():
        # On a CPU its first engine would compile a shared-memory extension for half a minute, and
        # a kill in mid-build leaves a lock on which later trials hang; gloo serves as well.
        deepspeed.ops.__compatible_ops__ = {}
    deepspeed.init_distributed(
        dist_backend="nccl" if torch.cuda.is_available() else "gloo",
        auto_mpi_discovery=False,
        verbose=False,
        init_method=_meeting_place(ranks),
        rank=ranks.rank,
        world_size=ranks.size,
    )
    atexit.register(_end_groups, deepspeed)
    return deepspeed


def _meeting_place(ranks: Ranks) -> str:
    """A URL by which torch finds the store of a trial's processes.

    With torch's own `env://` a single process too would open a TCPStore, on all interfaces, which
    serves whoever connects.
    """
    if ranks.size == 1:
        use_interface_of("127.0.0.1")  # gloo listens, though nobody is to come
    store = ranks.store or dist.HashStore()
    scheme = f"store{id(store)}"
    dist.register_rendezvous_handler(
        scheme, lambda url, **options: iter([(store, ranks.rank, ranks.size)])
    )
    return f"{scheme}://"


def _end_groups(deepspeed: Any) -> None:
    """Join the threads of collectives before the interpreter ends.

    One of gloo's that lets go of a tensor later aborts the process (PyTorch #179291). DeepSpeed
    keeps what it made for a PLM in shares, and its threads, for ever: Ray kills such processes.
    """
    if dist.is_initialized():
        deepspeed.comm.destroy_process_group()
    gc.collect()  # engines and parameters hold groups too
