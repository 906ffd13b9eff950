"""What is used of bitsandbytes beyond its documented interface, all of it in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_bitsandbytes_compat.py fails where bitsandbytes changes one.
"""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Stored(NamedTuple):
    """A quantized matrix [O, I] as bitsandbytes holds it."""

    packed: Tensor
    """Of 8 bits: int8 [O, I]; of 4 bits: uint8 with two numbers in each."""
    scales: Tensor
    """Largest absolute values, fp32: of 8 bits [O], a row's; of 4 bits one for each block."""
    block: int
    """Numbers in a block, row after row; 0: the scales are the rows'."""


def silence() -> None:
    """Keep bitsandbytes from saying, when it or peft is imported, that it lacks a fast kernel.

    It does so on CPUs where the package `kernels` is not installed. The kernel is for products that
    are not used here. (bitsandbytes 0.50)
    """
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def import_bitsandbytes() -> Any:
    """Import bitsandbytes without that message."""
    silence()
    import bitsandbytes
    import bitsandbytes.functional

    return bitsandbytes


def stored_matrix(module: nn.Module) -> Stored | None:
    """Return the quantized matrix of a module; None: the module is none of bitsandbytes'.

    Its modules hold a matrix and its scales in undocumented attributes, those of 8 bits
    `weight.SCB`, those of 4 bits `weight.quant_state`. Scales that are quantized themselves
    ("double quantization") are restored. (bitsandbytes 0.50)
    """
    bitsandbytes = import_bitsandbytes()
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, bitsandbytes.nn.Linear8bitLt):
        return Stored(weight.data, weight.SCB.to(torch.float32), 0)
    if not isinstance(module, bitsandbytes.nn.Linear4bit):
        return None
    state = weight.quant_state
    scales = state.absmax
    if state.nested:
        scales = bitsandbytes.functional.dequantize_blockwise(scales, state.state2) + state.offset
    return Stored(weight.data, scales.to(torch.float32), state.blocksize)


def dense_nf4(stored: Stored, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return a matrix that is stored in NF4 (Dettmers et al., 2023), in a number format.

    It is asked for as one row: of shorter ones its kernel for CPUs takes it that each begins a
    block, and is wrong where 64 do not divide their length. (bitsandbytes 0.50)
    """
    functional = import_bitsandbytes().functional
    state = functional.QuantState(
        absmax=stored.scales,
        shape=torch.Size((1, math.prod(shape))),
        blocksize=stored.block,
        quant_type="nf4",
        dtype=dtype,
    )
    found: Tensor = functional.dequantize_4bit(stored.packed, state)
    return found.view(shape)
