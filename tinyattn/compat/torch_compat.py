"""What errors of torch, CUDA, C++ and oneDNN say, which have no types of their own.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_torch_compat.py makes the errors of torch's allocator, C++ and oneDNN's kernels
happen, and fails where their messages change; tests/gpu fills a GPU. No test makes cuBLAS run out
of memory, nor oneDNN fail to create a memory object.

Not here, since torch documents it: `module.forward = ...` on a single module, which
`plms/products.py` and `adapters/placement.py` set within a block and then delete.
`nn.Module.__call__` calls `self.forward`, and Python finds the attribute of an instance before that
of its class.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch import nn

_OUT_OF_MEMORY = re.compile(
    "out of memory"  # CUDA, where torch has not made it a torch.OutOfMemoryError
    "|ALLOC_FAILED"  # cuBLAS
    "|bad_alloc"  # C++
    "|[Cc]an(no|')t allocate|not enough memory"  # torch's allocator for CPUs
    "|could not create a (primitive(?! descriptor)|memory)"  # oneDNN
)
"""(torch 2.6, 2.13)"""
_SPOILT = re.compile("could not create a primitive(?! descriptor)")
"""oneDNN's message; that a primitive's *descriptor* could not be created means wrong arguments.
(torch 2.6, 2.13)"""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a library's error means that memory ran out; each library has its own errors."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


def is_thread_spoilt(error: BaseException) -> bool:
    """Whether an error is torch's (oneDNN's) for having no memory to compile a kernel.

    Afterwards the thread can compile no kernel at all, however much memory is free: Xbyak, oneDNN's
    assembler, never resets a thread's error.
    """
    return isinstance(error, RuntimeError) and _SPOILT.search(str(error)) is not None


def skeleton_of(module: nn.Module) -> Any:
    """Return a copy of a module tree that shares its tensors and has no hooks.

    `copy.deepcopy` would copy hooks with all that they refer to, as the PLM itself. A module's
    children, parameters and buffers are in dicts of these names, and all dicts of hooks have
    `hooks` in theirs. (torch 2.6, 2.13)
    """
    done: dict[int, nn.Module] = {}

    def copied(original: nn.Module) -> nn.Module:
        if id(original) in done:
            return done[id(original)]
        found = copy.copy(original)
        done[id(original)] = found
        state = found.__dict__
        state.pop("forward", None)
        for name, value in list(state.items()):
            if "hooks" in name and isinstance(value, dict):
                state[name] = type(value)()
        for name in ("_parameters", "_buffers"):
            state[name] = dict(state[name])
        state["_modules"] = {
            name: None if child is None else copied(child)
            for name, child in original._modules.items()
        }
        return found

    return copied(module)
