"""What only a CUDA device can show: the same training there, masks in its kernels, its memory."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from tinyattn import plm_attention
from tinyattn.attention import TinyAttention
from tinyattn.config import TrainConfig
from tinyattn.errors import OutOfMemoryError
from tinyattn.trainer import Trainer
from tinyattn.workshop import Workshop

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

BASE = TrainConfig(
    task="agreement", plm="minilm", epochs=1, batch_size=16, max_length=32, max_train_rows=160
).with_overrides({"optimizer.lr": 3e-3, "adapter.dropout": 0.0})


def losses(config: TrainConfig, workshop: Workshop) -> list[float]:
    with contextlib.closing(Trainer(config, workshop)) as trainer:
        return [evaluation.train_loss for evaluation in trainer]


def test_gpu_computes_what_the_cpu_computes() -> None:
    torch.manual_seed(0)
    adapter = TinyAttention(64, 4, norm="affine").double()
    z = torch.randn(3, 9, 64, dtype=torch.float64)
    allowed = torch.rand(3, 1, 1, 9) > 0.3
    expected = adapter(z, allowed)
    found = adapter.cuda()(z.cuda(), allowed.cuda()).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_learns_and_repeats(precision: str) -> None:
    config = BASE.with_overrides({"precision": precision, "epochs": 2})
    workshop = Workshop()
    first = losses(config, workshop)
    assert first == pytest.approx(losses(config, workshop), rel=1e-3)
    assert all(loss < 1.0 for loss in first)


def test_rows_of_varying_lengths_attend_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's kernel for them, as by groups of rows with fused attention."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no such kernel")
    assert plm_attention._varlen_works(torch.device("cuda", 0), torch.bfloat16, 32, False, 1)
    config = BASE.with_overrides({"precision": "bf16"})
    calls, varlen = [], plm_attention._varlen
    monkeypatch.setattr(plm_attention, "_varlen", lambda *args: calls.append(1) or varlen(*args))
    found = losses(config, Workshop())
    assert calls
    monkeypatch.setattr(plm_attention, "_varlen_works", lambda *_: False)
    assert found == pytest.approx(losses(config, Workshop()), rel=2e-2)


def test_fully_masked_rows_are_zero_in_every_kernel() -> None:
    adapter = TinyAttention(64, 4).cuda()
    z = torch.randn(2, 5, 64, device="cuda", requires_grad=True)
    allowed = torch.ones(2, 1, 1, 5, dtype=torch.bool, device="cuda")
    allowed[1] = False
    out = adapter(z, allowed)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(z.grad).all()


def test_resume_on_gpu(tmp_path: Path) -> None:
    config = BASE.with_overrides({"adapter.dropout": 0.1})
    workshop = Workshop()
    whole = losses(config, workshop)
    with contextlib.closing(Trainer(config, workshop)) as trainer:
        next(iter(trainer))
        trainer.save(tmp_path)
    with contextlib.closing(Trainer(config, workshop)) as trainer:
        trainer.restore(tmp_path)
        rest = [evaluation.train_loss for evaluation in trainer]
    assert rest == pytest.approx(whole[1:], rel=1e-3)


def test_out_of_memory_is_told() -> None:
    workshop = Workshop()
    with contextlib.closing(Trainer(BASE, workshop)) as trainer:
        free, total = torch.cuda.mem_get_info()
        used = (total - free) / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, used + 1e-4))
        try:
            with pytest.raises(OutOfMemoryError, match="micro_batch_size"):
                list(trainer)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
