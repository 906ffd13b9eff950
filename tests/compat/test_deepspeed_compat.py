"""What is used of DeepSpeed beyond its public interface is there, and does the same."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

from tinyattn.training.deepspeed_compat import import_deepspeed, read_without_executing


def test_it_compiles_nothing_without_a_gpu() -> None:
    import deepspeed.ops

    assert hasattr(deepspeed.ops, "__compatible_ops__")
    import_deepspeed()
    if not torch.cuda.is_available():
        from deepspeed.ops.op_builder import all_ops

        assert all_ops.ALL_OPS  # what it could compile
        assert not deepspeed.ops.__compatible_ops__


def test_an_engine_reads_files_by_what_is_put_in_the_place_of_load(tmp_path: Path) -> None:
    assert "self.checkpoint_engine.load(" in _source(DeepSpeedEngine)
    assert "enable_backward_allreduce" in _source(DeepSpeedEngine)
    engine: Any = SimpleNamespace(checkpoint_engine=TorchCheckpointEngine())
    read_without_executing(engine)
    kept = {"scale": LossScaler(1.0), "stage": ZeroStageEnum(2), "w": torch.ones(2)}
    torch.save(kept, tmp_path / "good")
    assert engine.checkpoint_engine.load(str(tmp_path / "good"))["stage"] == 2
    torch.save({"path": Path("x")}, tmp_path / "bad")
    with pytest.raises(pickle.UnpicklingError):
        engine.checkpoint_engine.load(str(tmp_path / "bad"))


def _source(found: type) -> str:
    import inspect

    return inspect.getsource(found)
