"""What is used of bitsandbytes beyond its documented interface, all of it in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_bitsandbytes_compat.py fails where bitsandbytes changes one.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import sys
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_importing = threading.Lock()
"""Trials of several threads may load a PLM at once."""


class Stored(NamedTuple):
    """A quantized matrix [O, I] as bitsandbytes holds it."""

    packed: Tensor
    """Of 8 bits: int8 [O, I]; of 4 bits: uint8 with two numbers in each."""
    scales: Tensor
    """Largest absolute values, fp32: of 8 bits [O], a row's; of 4 bits one for each block."""
    block: int
    """Numbers in a block, row after row; 0: the scales are the rows'."""


def import_bitsandbytes() -> Any:
    """Import bitsandbytes quietly and fast.

    On CPUs where the package `kernels` is not installed, it says that it lacks a kernel; and it
    calls torch.compile, which loads torch's compiler: a second and 40 MB in each process. Both are
    for products that are not used here. (bitsandbytes 0.50)
    """
    with _importing:
        if "bitsandbytes" not in sys.modules:
            logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
            before = torch.compile
            torch.compile = _leave
            try:
                import bitsandbytes
            finally:
                torch.compile = before
    import bitsandbytes
    import bitsandbytes.functional

    return bitsandbytes


def _leave(model: Any = None, **options: Any) -> Any:
    """Stand in for torch.compile, as a function and as a decorator: nothing is compiled."""
    return model or (lambda own: own)


def import_before_peft() -> None:
    """Import bitsandbytes as above, if it is installed: peft, which transformers imports, would."""
    if importlib.util.find_spec("bitsandbytes") is not None:
        import_bitsandbytes()


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
