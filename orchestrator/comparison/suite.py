"""The suite of a comparison: one sweep a method, alike in all but what is trained."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import search_spaces
from orchestrator.comparison.methods import Sized
from orchestrator.spec.config import resolved
from orchestrator.spec.suite import Member, Suite
from orchestrator.spec.values import Json
from tinyattn.config import set_dotted
from tinyattn.errors import ConfigError, UsageError
from tinyattn.files.yaml_files import read_yaml

OWN = ("adapter", "plm", "task", "name", "space", "optimizer.lr")
"""What `compare` sets by itself, for each method."""
_SOURCE = "tinyattn compare"


def comparison_name(task: str) -> str:
    """Return what a comparison on a task is called, as in `compare-fewglue-rte`.

    Args:
        task: its name, or its file, whose name stands for it.
    """
    is_file = task.endswith((".yaml", ".yml"))
    return f"compare-{Path(task).stem if is_file else task.replace('/', '-')}"


def comparison_suite(
    name: str,
    task: str,
    plm: str,
    methods: Sequence[Sized],
    overrides: Mapping[str, Json],
) -> Suite:
    """Return the suite of a comparison, named `name`; its sweeps are `name-METHOD`.

    Each method has the space, trials, evaluations, early stopping, finalists and seeds of
    search_spaces/_base/compare.yaml; the bounds of the learning rate are equally far apart.

    Args:
        name: of the suite.
        task: name or path of the task.
        plm: name or folder of the PLM.
        methods: what is compared.
        overrides: dotted keys and values, for all.

    Raises:
        ConfigError: a line for each fault.
        UsageError: an override would make the methods unequal.
    """
    for key in overrides:
        bare = key.removeprefix("train.")
        if key in ("train", "lr") or bare in OWN or bare.split(".")[0] in OWN:
            raise UsageError(f"override {key}: a comparison sets it for each method; leave it out")
    base = read_yaml(search_spaces.base("compare"))
    members: list[Member] = []
    faults: dict[str, list[str]] = {}
    for method in methods:
        data = copy.deepcopy(base)
        data["name"] = f"{name}-{method.name}"
        set_dotted(data, "train.task", task)
        set_dotted(data, "train.plm", plm)
        set_dotted(data, "train.adapter", dict(method.adapter))
        low, high = method.rates
        data["space"]["optimizer.lr"] = {"type": "log_uniform", "low": low, "high": high}
        data["space"] |= {key: domain.model_dump() for key, domain in method.space.items()}
        try:
            sweep = resolved(data, overrides, _SOURCE)
            members.append(Member(method.name, sweep, "", dict(overrides)))
        except ConfigError as error:
            for line in str(error).splitlines():
                faults.setdefault(line, []).append(method.name)
    if faults:
        raise ConfigError("\n".join(_fault_lines(faults, len(methods))))
    return Suite(name, tuple(members), listed_by="--methods")


def _fault_lines(faults: Mapping[str, Sequence[str]], count: int) -> Iterator[str]:
    """Yield faults, each with the methods that have it, unless all `count` of them have it."""
    for line, names in faults.items():
        if len(names) == count:
            yield line
            continue
        listed = ", ".join(names)
        bare = line.removeprefix(f"{_SOURCE}: ").removeprefix("train: ")
        yield f"{listed}: {bare}; or leave {listed} out of --methods"
