"""What can be known of a sweep before it starts, and what would go wrong: nothing is trained here.

`inspect` is also the first step of `sweep run`: a user's mistake ends there, not in a worker.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from orchestrator.config import Sweep, rungs
from tinyattn.config import TrainConfig
from tinyattn.engine import warmup_steps
from tinyattn.errors import ConfigError, TinyAttnError
from tinyattn.evaluation import evaluation_steps
from tinyattn.model import AdaptedModel, Counts
from tinyattn.placement import select_layers
from tinyattn.plm import empty_plm
from tinyattn.tasks import Task
from tinyattn.workshop import Workshop

LENGTH_KEYS = ("epochs", "batch_size", "evaluate_every")
"""Keys that set how many evaluations a trial has."""
BYTES = {"fp32": 4, "bf16": 2}
A4000_FLOPS = 8e12
"""Sustained fp32 operations per second assumed of an RTX A4000 (16 GB): 40 % of its peak."""


WORTH_SAYING = 1.2
"""How many times as slow as fp32 bf16 must be."""
_PRODUCT = 128, 384, 1536
"""Shape of the product of matrices that is timed: a feed-forward layer of MiniLM's."""
_CORE_SHARE = 0.6
"""What a trial comes to of that product's speed: with MiniLM 0.44 (bf16, SST-2, batches of 8) to
0.82 (fp32, RTE, batches of 16), from the steps of EXPERIMENTS.md."""


@dataclass(frozen=True)
class Facts:
    """What the sweep will meet."""

    task: str
    primary_metric: str
    plm_fingerprint: str
    data_fingerprint: str
    carve: int | None
    """Version of the carve that makes the rows to select on or dev; None: none are carved."""
    carve_notes: tuple[str, ...]
    """What a reader of scores on carved rows must know."""
    train_rows: int
    select_rows: int
    heldout_rows: int
    truncated_rows: int
    mean_length: float
    """Real tokens per training row."""
    evaluations: int
    """Evaluations of the longest trial of the space."""
    fewest_rows: int
    """Rows of an epoch of the shortest training, of trials or experts."""


@dataclass(frozen=True)
class Cost:
    """Predictions, from shapes alone."""

    counts: Counts
    """Of the common configuration."""
    memory_gb: float
    """Of one trial at most: weights and activations of a full micro-batch."""
    trial_pflop: float
    """Arithmetic of one whole trial, 10^15 operations."""


def inspect(sweep: Sweep, workshop: Workshop) -> Facts:
    """Load PLM and data as a trial would, and check the space's extremes against them.

    Raises:
        UsageError: PLM, task, data or a value of the space do not fit.
    """
    plm = workshop.plm(sweep.train.plm, sweep.train.precision)
    check_shapes(sweep)
    lengths = {config.max_length for config in extremes(sweep, ("max_length",))}
    for length in sorted(lengths):
        data = workshop.data(sweep.train.with_overrides({"max_length": length}))
    return Facts(
        task=data.task.name,
        primary_metric=data.task.metrics[0],
        plm_fingerprint=plm.fingerprint,
        data_fingerprint=data.fingerprint,
        carve=sweep.train.carve_version if _is_carved(sweep, data.task) else None,
        carve_notes=data.carve_notes,
        train_rows=len(data.train),
        select_rows=len(data.select),
        heldout_rows=0 if data.heldout is None else len(data.heldout),
        truncated_rows=data.truncated,
        mean_length=float(np.diff(data.train.flat().offsets).mean()),
        evaluations=max_evaluations(sweep, len(data.train)),
        fewest_rows=min(
            len(workshop.data(config).train)
            for config in extremes(_with_experts(sweep), ("max_train_rows",))
        ),
    )


def _with_experts(sweep: Sweep) -> Sweep:
    """The sweep with the space of its experts, who train as the best trial does but for that."""
    return sweep.model_copy(update={"space": {**sweep.space, **sweep.finalize.space}})


def _is_carved(sweep: Sweep, task: Task) -> bool:
    return sweep.train.protocol == "heldout" or task.splits.validation is None


def values_of(sweep: Sweep, key: str) -> list[Any]:
    """Return the extremes of a searched key, or the one value that all trials share."""
    if key in sweep.space:
        return sweep.space[key].extremes()
    return [functools.reduce(getattr, key.split("."), sweep.train)]


def fewest_steps(sweep: Sweep, train_rows: int) -> int:
    """Optimizer steps of the shortest training that the space allows."""
    return -(-train_rows // max(values_of(sweep, "batch_size"))) * min(values_of(sweep, "epochs"))


def check_warmup(sweep: Sweep, fewest_rows: int) -> None:
    """Compare each warm-up with the shortest training, of trials and of experts.

    A new sweep is refused for it; one that was begun before there was this rule goes on.

    Raises:
        ConfigError: it would take all steps of a training.
    """
    for one in (sweep, _with_experts(sweep)):
        for warmup in values_of(one, "optimizer.warmup"):
            warmup_steps(warmup, fewest_steps(one, fewest_rows))


def warmup_note(sweep: Sweep, facts: Facts) -> list[str]:
    """Return what is said of such a warm-up where a sweep goes on."""
    try:
        check_warmup(sweep, facts.fewest_rows)
    except ConfigError as error:
        return [f"note: {error}; a trial like this fails, the others go on"]
    return []


def max_evaluations(sweep: Sweep, train_rows: int) -> int:
    """Evaluations of the longest trial that the space allows."""
    return max(
        len(evaluation_steps(config, -(-train_rows // config.batch_size)))
        for config in extremes(sweep, LENGTH_KEYS)
    )


def check_shapes(sweep: Sweep) -> None:
    """Look up the layers and places of every extreme in the PLM's shape, without its weights.

    Raises:
        UsageError: a layer, or a place for an adapter, is not in the PLM.
    """
    plm = empty_plm(sweep.train.plm)
    keys = [key for key in sweep.space if key.startswith("adapter.")]
    for key in [None, *keys]:
        for config in extremes(sweep, (key,) if key else ()):
            try:
                model = AdaptedModel(plm, config.adapter.placement)
                select_layers(config.adapter.layers, len(model.sites.calls))
                model.detach()
            except TinyAttnError as error:
                raise ConfigError(f"space: {key}: {error}" if key else str(error)) from None


def extremes(sweep: Sweep, keys: tuple[str, ...]) -> Iterator[TrainConfig]:
    """Yield the common configuration with every combination of the extremes of these keys."""
    searched = [key for key in keys if key in sweep.space]
    for values in itertools.product(*(sweep.space[key].extremes() for key in searched)):
        yield sweep.trial_config(dict(zip(searched, values, strict=True)))


def predict_cost(
    sweep: Sweep, train_rows: int, mean_length: float, num_outputs: int = 2, scored_rows: int = 0
) -> Cost:
    """Predict parameters, memory and arithmetic of a trial from the PLM's shape.

    Args:
        sweep: whose trial.
        train_rows: of an epoch.
        mean_length: tokens a row.
        num_outputs: of the classifier.
        scored_rows: rows that all evaluations of a trial score together.
    """
    config, plm = sweep.train, empty_plm(sweep.train.plm)
    model = AdaptedModel(plm, config.adapter.placement)
    model.add_adapter("count", config.adapter, num_outputs)
    counts = model.counts()
    shape = plm.config
    layers, hidden = shape.num_hidden_layers, shape.hidden_size
    body = layers * 12 * hidden**2  # weights that every token passes: attention and feed-forward
    micro, size = config.micro_batch_size or config.batch_size, BYTES[config.precision]
    # Activations kept for the backward pass, per token and layer: 34 H + 5 heads T bytes at two
    # bytes a number (Korthikanti et al., 2022, table 2): an upper bound, since frozen weights
    # need no inputs kept.
    per_token = 34 * hidden + 5 * shape.num_attention_heads * config.max_length
    activations = micro * config.max_length * layers * per_token * size / 2
    trained, scored = train_rows * config.epochs * mean_length, scored_rows * mean_length
    parts = sweep.resources.ranks if config.zero_stage == 3 else 1
    return Cost(
        counts=counts,
        memory_gb=(counts.plm * size / parts + activations + 16 * counts.trainable) / 1e9,
        # Forward 2 operations a weight, backward to the activations 2 more; no weight gradients.
        trial_pflop=body * (4 * trained + 2 * scored) / 1e15,
    )


def core_flops(precision: str) -> float:
    """Operations per second that a trial comes to on one of this machine's cores, measured."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _CORE_SHARE * 2 * math.prod(_PRODUCT) / _product_seconds(dtype)
    finally:
        torch.set_num_threads(before)


def slow_bf16(sweep: Sweep) -> str:
    """What bf16 costs where trials run on this machine's cores; empty where it is no loss.

    Without instructions for it a processor takes many times as long.
    """
    if sweep.train.precision != "bf16" or sweep.resources.gpus:
        return ""
    ratio = bf16_ratio()
    if ratio < WORTH_SAYING:
        return ""
    return (
        f"precision=bf16 will be slower than fp32: this processor takes {ratio:.1f} times as long "
        "for a product of matrices in it; precision=fp32 does without"
    )


def bf16_ratio() -> float:
    """How many times as long as in fp32 a product of matrices takes on this machine's cores."""
    return _product_seconds(torch.bfloat16) / _product_seconds(torch.float32)


def _product_seconds(dtype: torch.dtype) -> float:
    """The least of some times that a product of a feed-forward layer's size takes."""
    rows, inner, columns = _PRODUCT
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def rung_words(sweep: Sweep, evaluations: int) -> str:
    """The rungs in words, as in `2, 6, 18 of 40 evaluations`."""
    if sweep.asha is None:
        return f"none: every trial runs its {evaluations} evaluations"
    found = rungs(sweep.asha.grace, sweep.asha.reduction, evaluations)
    if not found:
        return f"none within {evaluations} evaluations: every trial runs to its end"
    words = ", ".join(map(str, found))
    return f"{words} of {evaluations} evaluations, about 1 in {sweep.asha.reduction} goes on"
