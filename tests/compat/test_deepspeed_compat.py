"""What is used of DeepSpeed beyond its public interface is there, and does the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tinyattn.compat.deepspeed_compat import import_deepspeed, whole_size
from tinyattn.config import TrainConfig
from tinyattn.errors import DamagedError
from tinyattn.passes.ranks import ONE
from tinyattn.training.engine import (
    build_engine,
    deepspeed_config,
    load_optimizer,
    save_optimizer,
    shard,
)

pytestmark = pytest.mark.slow

CONFIG = TrainConfig(task="agreement", plm="minilm", batch_size=2)


def engine_of(zero_stage: int) -> Any:
    return build_engine(nn.Linear(3, 2), CONFIG.with_overrides({"zero_stage": zero_stage}), 10)


def step(engine: Any) -> list[str]:
    """Take a step; return what was called in it that adds up numbers of several processes."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        engine.backward(engine(torch.ones(2, 3, device=engine.device)).sum())
        engine.step()
    names = {event.key for event in found.key_averages()}
    assert "aten::addmm" in names  # something was recorded at all
    return sorted(name for name in names if "allreduce" in name or "all_reduce" in name)


def test_it_compiles_nothing_without_a_gpu() -> None:
    import deepspeed.ops

    assert hasattr(deepspeed.ops, "__compatible_ops__")
    import_deepspeed()
    if not torch.cuda.is_available():
        from deepspeed.ops.op_builder import all_ops

        assert all_ops.ALL_OPS  # what it could compile
        assert not deepspeed.ops.__compatible_ops__


def test_gradients_of_a_single_process_are_sent_nowhere() -> None:
    assert step(engine_of(0)) == []
    model = nn.Linear(3, 2)
    stock, *_ = import_deepspeed().initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        config=deepspeed_config(CONFIG),
    )
    assert step(stock) != []  # or the switch is needed no more


class Executed:
    """An object whose unpickling makes a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


def test_an_engine_reads_its_own_files_and_executes_nothing_in_others(tmp_path: Path) -> None:
    engine = engine_of(1)
    step(engine)
    state = save_optimizer(engine, tmp_path / "state", 1)
    load_optimizer(engine_of(1), tmp_path / "state", 1, state)
    files = sorted((tmp_path / "state").rglob("*optim_states.pt"))
    assert files
    for file in files:
        torch.save({"optimizer_state_dict": Executed(tmp_path / "done")}, file)
    with pytest.raises(DamagedError, match="cannot be read"):
        load_optimizer(engine_of(1), tmp_path / "state", 1, state)
    assert not (tmp_path / "done").exists()
    torch.load(files[0], weights_only=False)
    assert (tmp_path / "done").exists()  # so it would have been executed


def test_a_weight_that_is_split_tells_its_whole_size() -> None:
    plm = nn.Linear(30, 20, bias=False)
    assert whole_size(plm.weight) == 600
    shard(plm, ONE)
    assert plm.weight.numel() == 0
    assert whole_size(plm.weight) == 600


def test_torch_is_for_other_plms_what_it_was_before_one_was_split() -> None:
    """And the split one saves no gathered weights, which its backward pass would keep."""
    owners = {
        "torch": torch, "nn.functional": nn.functional, "Tensor": torch.Tensor,
        "nn.Parameter": nn.Parameter, "nn.Module": nn.Module, "nn.Linear": nn.Linear,
        "nn.Embedding": nn.Embedding, "autograd": torch.autograd,
        "autograd.Function": torch.autograd.Function, "Optimizer": torch.optim.Optimizer,
    }  # fmt: skip
    step(engine_of(2))  # imports what is imported at the first use

    def attributes() -> dict[str, int]:
        return {
            f"{o}.{name}": id(v) for o, owner in owners.items() for name, v in vars(owner).items()
        }

    before = attributes()
    plm = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10)).requires_grad_(False)
    whole = [p.detach().clone() for p in plm.parameters()]
    shard(plm, ONE)
    device = plm[0].weight.device
    step(engine_of(0))
    after = attributes()
    assert {name for name in before if after.get(name) != before[name]} == set()

    x = torch.randn(4, 30, device=device, requires_grad=True)
    whole = [p.to(device) for p in whole]
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = plm[1](input=plm[0](input=x))
    assert {x.numel(), 80} <= {tensor.numel() for tensor in saved}
    assert 600 not in {tensor.numel() for tensor in saved}  # the weights saved are empty by now
    y.sum().backward()
    other = x.detach().requires_grad_()
    wanted = nn.functional.linear(nn.functional.linear(other, *whole[:2]), *whole[2:])
    wanted.sum().backward()
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(x.grad, other.grad)


def test_a_split_that_fails_leaves_torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the program had a function of its own there."""

    def too_large(**_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    stock = nn.functional.linear

    def own(*given: Any) -> torch.Tensor:
        return stock(*given)

    for linear in (stock, own):
        monkeypatch.setattr(nn.functional, "linear", linear)
        with monkeypatch.context() as patched:
            patched.setattr(import_deepspeed(), "initialize", too_large)
            with pytest.raises(torch.OutOfMemoryError):
                shard(nn.Linear(30, 20), ONE)
        assert nn.functional.linear is linear
        shard(nn.Linear(30, 20), ONE)
        assert nn.functional.linear is linear


def test_its_import_brings_no_mlflow_which_can_be_imported_afterwards() -> None:
    code = """
import sys
from tinyattn.compat.deepspeed_compat import import_deepspeed
import_deepspeed()
from deepspeed.autotuning import autotuner
print("mlflow" in sys.modules, autotuner.has_mlflow)
import mlflow
print(mlflow.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "mlflow"]
