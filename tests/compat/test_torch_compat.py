"""Errors of torch, C++ and oneDNN that really happen are told apart as tinyattn needs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tinyattn.compat.torch_compat import skeleton_of

FAILING = """
import json, resource, threading
from pathlib import Path
import torch
from torch.nn.functional import gelu
from tinyattn.compat.torch_compat import is_out_of_memory, is_thread_spoilt, skeleton_of

def failed(name, work):
    try:
        work()
    except Exception as error:
        print(json.dumps([name, is_out_of_memory(error), is_thread_spoilt(error), str(error)]))
    else:
        print(json.dumps([name, False, False, ""]))

def full(name, work):
    heap = [bytearray(3000) for _ in range(3000)]  # what Python needs; the rest is mapped anew
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    del heap[::2]
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        failed(name, work)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

many, x = torch.empty(30_000_000), torch.randn(65, 7)
full("allocator", lambda: torch.empty(2**34))
full("vector", many.unbind)
def misused():  # hidden states of another width than the weights
    weights = [torch.randn(16, 4), torch.randn(16, 4), torch.randn(16), torch.randn(16)]
    state = torch.randn(1, 3, 4)
    torch.mkldnn_rnn_layer(torch.randn(2, 3, 4), *weights, state, state, False, [], 9, 4, 1, True,
                           False, True, False)
failed("arguments", misused)
failed("shapes", lambda: x @ x)
full("kernel", lambda: gelu(x))
failed("same thread", lambda: gelu(torch.randn(66, 7)))  # all memory is free
other = threading.Thread(target=failed, args=["other thread", lambda: gelu(torch.randn(67, 7))])
other.start()
other.join()
"""


@pytest.fixture(scope="module")
def errors() -> dict[str, tuple[bool, bool, str]]:
    """{what failed: (is it out of memory, is its thread spoilt, the library's words)}."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name: tuple(found) for name, *found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allocator", "vector", "kernel"])
def test_a_lack_of_memory_is_known_wherever_it_strikes(
    errors: dict[str, tuple[bool, bool, str]], name: str
) -> None:
    is_out_of_memory, is_spoilt, words = errors[name]
    assert is_out_of_memory, words
    assert is_spoilt == (name == "kernel"), words


@pytest.mark.slow
@pytest.mark.parametrize("name", ["arguments", "shapes"])
def test_wrong_arguments_are_no_lack_of_memory(
    errors: dict[str, tuple[bool, bool, str]], name: str
) -> None:
    is_out_of_memory, is_spoilt, words = errors[name]
    assert words, "nothing failed"
    assert not is_out_of_memory, words
    assert not is_spoilt, words


@pytest.mark.slow
def test_a_thread_that_had_no_memory_to_compile_in_is_spoilt_and_no_other_is(
    errors: dict[str, tuple[bool, bool, str]],
) -> None:
    """If oneDNN comes to reset the error, a worker need not leave its thread any more."""
    assert errors["same thread"][1], errors["same thread"]
    assert errors["other thread"] == (False, False, "")


def test_a_module_runs_the_forward_that_is_set_on_it_alone_until_it_is_deleted() -> None:
    module, other, heard = nn.Linear(2, 2), nn.Linear(2, 2), list[Any]()
    module.register_forward_hook(lambda *args: heard.append(args[0]))
    x = torch.ones(1, 2)
    before = module(x)

    def double(given: Tensor) -> Tensor:
        return 2 * given

    module.forward = double  # type: ignore[method-assign]
    assert torch.equal(module(x), 2 * x)
    assert not torch.equal(other(x), 2 * x)
    del module.forward
    assert torch.equal(module(x), before)
    assert heard == [module] * 3  # hooks ran with either


def test_a_skeleton_shares_tensors_and_has_no_hooks() -> None:
    """And what is changed on it leaves the module tree that it is of alone."""
    inner = torch.nn.Linear(3, 3)
    inner.register_buffer("kept", torch.ones(2))
    tree = torch.nn.Sequential(inner, torch.nn.ReLU(), inner)
    ran: list[str] = []
    inner.register_forward_hook(lambda *_: ran.append("hook"))
    tree.register_forward_pre_hook(lambda *_: ran.append("pre-hook"))
    inner.register_full_backward_hook(lambda *_: ran.append("backward"))
    inner.forward = lambda x: x  # type: ignore[method-assign]
    skeleton = skeleton_of(tree)
    del inner.forward  # type: ignore[method-assign]
    x = torch.ones(1, 3, requires_grad=True)
    found = skeleton(x)
    found.sum().backward()
    assert ran == []
    assert torch.equal(found, tree(x))
    assert ran != []
    assert skeleton[0] is skeleton[2]
    assert skeleton[0].weight is inner.weight
    assert skeleton[0].kept is inner.kept
    skeleton[0].weight = torch.nn.Parameter(torch.zeros(3, 3))
    skeleton[1] = torch.nn.Identity()
    skeleton.train(False)
    skeleton[0].register_forward_hook(lambda *_: ran.append("own"))
    ran.clear()
    tree(x)
    assert "own" not in ran
    assert inner.weight.abs().sum() > 0
    assert isinstance(tree[1], torch.nn.ReLU)
    assert tree.training
