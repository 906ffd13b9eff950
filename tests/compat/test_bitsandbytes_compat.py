"""What tinyattn reads of bitsandbytes' modules is the matrix that they hold."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from tinyattn.compat.bitsandbytes_compat import dense_nf4, import_bitsandbytes, stored_matrix

MATRIX = torch.randn((48, 80), generator=torch.Generator().manual_seed(0))

# The 16 numbers of NF4, as appendix E of "QLoRA" (Dettmers et al., 2023) prints them.
NF4 = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]


def test_eight_bits_are_the_nearest_of_255_to_a_rows_largest() -> None:
    made: Any = import_bitsandbytes().nn.Linear8bitLt(80, 48, has_fp16_weights=False)
    made.weight.data.copy_(MATRIX)
    made.weight = made.weight.to("cpu")
    stored = stored_matrix(made)
    assert stored is not None
    assert stored.block == 0
    half = MATRIX.half().float()
    largest = half.abs().amax(1)
    torch.testing.assert_close(stored.scales, largest)
    exact = half / largest[:, None] * 127
    assert float((stored.packed - exact).abs().max()) <= 0.5 + 1e-4


@pytest.mark.parametrize("twice", [False, True], ids=["scales in fp32", "scales quantized too"])
def test_four_bits_are_the_nearest_of_16_to_a_blocks_largest(twice: bool) -> None:
    made: Any = import_bitsandbytes().nn.Linear4bit(
        80, 48, quant_type="nf4", compress_statistics=twice
    )
    made.weight.data.copy_(MATRIX)
    made.weight = made.weight.to("cpu")
    stored = stored_matrix(made)
    assert stored is not None
    assert stored.block == 64
    blocks = MATRIX.view(-1, 64)
    largest = blocks.abs().amax(1)
    torch.testing.assert_close(stored.scales, largest, rtol=0.03 if twice else 1e-6, atol=0)
    table = torch.tensor(NF4)
    nearest = ((blocks / largest[:, None])[..., None] - table).abs().argmin(-1)
    wanted = table[nearest] * stored.scales[:, None]
    torch.testing.assert_close(dense_nf4(stored, (48, 80), torch.float32), wanted.view(48, 80))


def test_other_modules_hold_none() -> None:
    assert stored_matrix(nn.Linear(4, 4)) is None
    assert stored_matrix(nn.LayerNorm(4)) is None


def test_an_import_says_nothing_and_loads_no_compiler() -> None:
    """Also that of peft, which imports it; bitsandbytes alone may say that it lacks a kernel."""
    code = """
import sys, torch
from tinyattn.compat.bitsandbytes_compat import import_before_peft
compile = torch.compile
import_before_peft()
import peft
assert torch.compile is compile
print("bitsandbytes" in sys.modules, "torch._inductor.compile_fx" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == "True False\n"
