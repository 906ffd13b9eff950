"""What a training step costs by each way of running it, on real rows with their real lengths.

    recipe    the authors' way: padded to 128 tokens, attention written out, plain torch
    dynamic   padded to the batch's longest row, fused attention
    split     as `dynamic`, and cut into passes by length
    floor     no padding; frozen PLM with one trainable vector after its first attention block
    solo      no padding; a trial's whole step as a sweep takes it: DeepSpeed, AdamW, all adapters
    solo bf16 the same with the PLM in bf16 (adapters stay in fp32)
    top half  as `solo`, with adapters in the upper half of the layers only
    kept      as `top half`, and what the lower half makes of the rows was computed before
    packed K  as `solo`, for K trials that share passes, time of one trial's step
    floor K   as `floor`, rows of K trials in passes as they share them: what that brings at best

The first three, `solo` and `packed` compute the same, and so do `top half` and `kept`. Each repeat
measures every way once, in an order drawn anew, on the same uniformly random batches, one thread.
Beside that: several adapters in one mixed batch of short rows against a pass for each, the start of
a trial in a warm worker against a cold process, and the memory of one more packed trial against a
process.

    TINYATTN_DATA=... python -m benchmarks.speed [--tasks sst2 rte] [--repeats 5] [--json FILE]
                                                 [--plm minilm]

Where there is a GPU it is measured, all ways in bf16 and in wall time. `--plm shape:roberta-large`
is a PLM of that shape with random weights, as fast as the real one.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from orchestrator.provenance import commit
from tinyattn import passes
from tinyattn import trainer as trainer_module
from tinyattn.attention import TinyAttention
from tinyattn.batches import epoch_order
from tinyattn.config import TrainConfig
from tinyattn.model import AdaptedModel, Adapter
from tinyattn.plm import find_plm, read_config
from tinyattn.probe import side_by_side as take_side_by_side
from tinyattn.stream import joined
from tinyattn.trainer import Trainer, row_losses
from tinyattn.workshop import CPU_TOKENS, Workshop

PADDED = 128
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
STEPS = {16: 32, 4: 32} if GPU else {16: 8, 4: 24}
"""Steps of a measurement, by batch size."""
PACKED = {16: (2, 4, 8, 16), 4: (4, 16)} if GPU else {16: (4,), 4: (4, 8)}
"""Numbers of trials that share passes, by batch size."""
Way = Callable[[], float]
"""Runs some steps; returns the seconds of one trial's step."""


def now() -> float:
    """Seconds of this process's CPU time, or of a GPU that has done all it was told."""
    if GPU:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


class Bench:
    """One task at one batch size."""

    def __init__(self, workshop: Workshop, task: str, batch: int, plm: str) -> None:
        self.workshop, self.batch, self.steps = workshop, batch, STEPS[batch]
        self.config = TrainConfig(
            task=task, plm=plm, batch_size=batch, max_length=PADDED, max_train_rows=4000,
            adapter={"num_heads": 4, "dropout": 0.0}, precision="bf16" if GPU else "fp32",
        )  # fmt: skip
        with self.trainer() as trainer:
            self.rows = trainer.train_rows
        order = epoch_order(len(self.rows), 0, 0)
        self.batches = [order[i * batch : (i + 1) * batch] for i in range(self.steps)]

    @contextlib.contextmanager
    def trainer(self, **changes: Any) -> Iterator[Trainer]:
        config = self.config.with_overrides(changes)
        with contextlib.closing(Trainer(config, self.workshop)) as trainer:
            yield trainer

    def ways(self) -> dict[str, Way]:
        """By name."""
        packed: dict[str, Way] = {"solo": lambda: self.trials(1), "floor": self.floor}
        for k in PACKED[self.batch]:
            packed[f"packed {k}"] = functools.partial(self.trials, k)
            packed[f"floor {k}"] = functools.partial(self.floor, k)
        if self.batch != 16:
            return packed
        ways: dict[str, Way] = {
            "recipe": self.recipe,
            "dynamic": lambda: self.padded(1e9),
            "split": lambda: self.padded(32.0),
            "solo bf16": lambda: self.trials(1, precision="bf16"),
            "top half": self.top_half_whole,
            "kept": lambda: self.trials(1, **self.top_half),
            **packed,
        }
        return {name: way for name, way in ways.items() if not (GPU and name == "solo bf16")}

    @property
    def top_half(self) -> dict[str, Any]:
        """Adapters in the upper half of the layers."""
        layers = self.workshop.plm_of(self.config).model.config.num_hidden_layers
        return {"adapter.layers": f"top-{layers // 2}"}

    def trials(self, count: int, **changes: Any) -> float:
        """Steps of so many trials in one process."""
        with self.side_by_side(count, **changes) as take_steps:
            begin = now()
            take_steps(self.steps)
            return (now() - begin) / (self.steps * count)

    @contextlib.contextmanager
    def side_by_side(self, count: int, **changes: Any) -> Iterator[Callable[[int], object]]:
        """So many trials in one process, each in its thread; yields what has them take steps."""
        with contextlib.ExitStack() as stack:
            each = [{"optimizer.lr": 1e-3 * (n + 1)} for n in range(count)]  # and the same rows
            trainers = [stack.enter_context(self.trainer(**own, **changes)) for own in each]
            yield lambda steps: take_side_by_side(trainers, steps)

    def real_share(self, count: int, **changes: Any) -> float:
        """Real tokens ÷ tokens that go through the PLM, where so many trials share passes."""
        real, processed = 0, 0

        def look(plm: nn.Module, args: Any, given: dict[str, Any]) -> None:
            nonlocal real, processed
            real += int(given["stream"].lengths.sum())
            processed += given["input_ids"].numel()

        with self.side_by_side(count, **changes) as take_steps:
            plm = self.workshop.plm_of(self.config.with_overrides(changes)).model
            handle = plm.register_forward_pre_hook(look, with_kwargs=True)
            take_steps(self.steps)
            handle.remove()
        return real / processed

    def top_half_whole(self) -> float:
        """Every step runs the lower half too."""
        with replaced(trainer_module, "bottom_of", lambda *_: None):
            return self.trials(1, **self.top_half)

    def padded(self, pass_cost: float) -> float:
        """A trial's steps on padded batches, cut where a pass costs so many tokens."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(replaced(AdaptedModel, "can_stream", lambda model: False))
            stack.enter_context(replaced(passes, "_PASS_COST", {DEVICE.type: pass_cost}))
            return self.trials(1)

    def recipe(self) -> float:
        """Steps of the recipe."""
        with self.as_the_recipe() as take_steps:
            begin = now()
            take_steps(self.steps)
            return (now() - begin) / self.steps

    @contextlib.contextmanager
    def plain(self) -> Iterator[tuple[AdaptedModel, Adapter]]:
        """A model with one adapter that trains, and nothing of a Trainer around it."""
        model = AdaptedModel(self.workshop.plm_of(self.config).model)
        adapter = model.add_adapter("plain", self.config.adapter, 2)
        model.train()
        try:
            yield model, adapter
        finally:
            model.detach()

    @contextlib.contextmanager
    def as_the_recipe(self) -> Iterator[Callable[[int], None]]:
        """Plain torch on batches padded to 128, nothing fused; yields what takes steps."""
        plm = self.workshop.plm_of(self.config).model
        before = plm.config._attn_implementation
        plm.set_attn_implementation("eager")
        with self.plain() as (model, adapter), replaced(TinyAttention, "_attend", written_out):
            optimizer = torch.optim.AdamW(adapter.parameters(), lr=1e-3)

            def take_steps(steps: int) -> None:
                for indices in self.batches[:steps]:
                    batch = self.rows.batch(indices)
                    batch = {key: value.to(DEVICE) for key, value in batch.items()}
                    labels = batch.pop("labels")
                    wide = PADDED - batch["input_ids"].shape[1]
                    logits = model(**{key: F.pad(value, (0, wide)) for key, value in batch.items()})
                    row_losses(logits, labels).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()

            try:
                yield take_steps
            finally:
                plm.set_attn_implementation(before)

    def floor(self, count: int = 1) -> float:
        """Plain torch on streams, one trainable vector in the place of all adapters; so many times
        the same batch, in passes that are no longer than those that trials share."""
        plm: Any = self.workshop.plm_of(self.config).model
        model = AdaptedModel(plm)
        vector = nn.Parameter(torch.zeros(plm.config.hidden_size, device=DEVICE))
        classifier = nn.Linear(plm.config.hidden_size, 2, device=DEVICE)
        optimizer = torch.optim.AdamW([vector, *classifier.parameters()], lr=1e-3, fused=True)
        handle = plm.encoder.layer[0].attention.register_forward_hook(
            lambda module, args, output: (output[0] + vector.to(plm.dtype), *output[1:])
        )
        begin = now()
        for indices in self.batches:
            indices = indices[np.argsort(-self.rows.lengths[indices], kind="stable")]
            labels = torch.from_numpy(self.rows.labels[indices]).to(DEVICE)
            tokens = int(self.rows.lengths[indices].sum())
            together = count if GPU else min(count, max(1, CPU_TOKENS // tokens))
            for first in range(0, count, together):
                trials = min(together, count - first)
                streams = [self.rows.stream(indices, DEVICE) for _ in range(trials)]
                pooled = model.run_bare(joined(streams))
                row_losses(classifier(pooled), labels.repeat(trials)).mean().backward()
            for _ in range(count):
                optimizer.step()
            optimizer.zero_grad()
        seconds = now() - begin
        handle.remove()
        model.detach()
        return seconds / (self.steps * count)


def written_out(
    module: TinyAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    is_causal: bool,
) -> Tensor:
    """Equation 3 with a score matrix, as the authors' code has it."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(module.head_dim)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return torch.softmax(scores, dim=-1) @ value


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within the block an attribute is another."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def interleaved(
    ways: Mapping[str, Way], repeats: int, rng: np.random.Generator
) -> dict[str, list[float]]:
    """Seconds of each way in each repeat, after one run of each that does not count."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name in rng.permutation(list(ways)):
            seconds = ways[name]()
            if repeat:
                found[name].append(seconds)
    return found


@contextlib.contextmanager
def mixed(
    workshop: Workshop, plm: str, adapters: int = 8, rows: int = 8
) -> Iterator[dict[str, Way]]:
    """So many adapters in one pass, and a pass for each, on so many short rows an adapter."""
    bench = Bench(workshop, "sst2", 4, plm)
    model = AdaptedModel(workshop.plm_of(bench.config).model)
    rng = np.random.default_rng(0)
    short = np.flatnonzero(bench.rows.lengths <= 12)
    parts = []
    for number in range(adapters):
        config = bench.config.adapter
        model.add_adapter(f"a{number}", config, 2, seed=number)
        chosen = rng.choice(short, rows)
        chosen = chosen[np.argsort(-bench.rows.lengths[chosen])]
        parts.append((f"a{number}", chosen))
    model.eval()
    model.switch(None)

    def timed(calls: list[list[tuple[str, np.ndarray]]]) -> float:
        with torch.inference_mode():
            begin = now()
            for _ in range(10):
                for call in calls:
                    model.run_streams(
                        [(name, bench.rows.stream(own, DEVICE)) for name, own in call]
                    )
            return (now() - begin) / 10

    yield {"one pass": lambda: timed([parts]), "a pass each": lambda: timed([[p] for p in parts])}
    model.detach()


def starts(workshop: Workshop, config: TrainConfig) -> dict[str, Way]:
    """Wall time from nothing to a trial that can take its first step."""
    code = (
        "from tinyattn.config import TrainConfig; from tinyattn.trainer import Trainer;"
        "from tinyattn.workshop import Workshop; import ray, mlflow;"
        f"Trainer(TrainConfig.model_validate_json({config.model_dump_json()!r}), Workshop())"
    )

    def cold() -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        return time.perf_counter() - begin

    def warm() -> float:
        begin = time.perf_counter()
        with contextlib.closing(Trainer(config, workshop)):
            return time.perf_counter() - begin

    return {"cold process": cold, "warm worker": warm}


def memory(config: TrainConfig, packed: int = 8) -> dict[str, float]:
    """MB of a process with one trial that trains, and of each further trial in it (T = 32); where
    there is a GPU, of its memory."""
    workshop, process = Workshop(), psutil.Process()
    trainers: list[Trainer] = []

    def train() -> float:
        take_side_by_side(trainers, 4)
        return (torch.cuda.memory_reserved() if GPU else process.memory_info().rss) / 2**20

    trainers.append(Trainer(config, workshop))
    one = train()
    trainers += [Trainer(config.with_overrides({"seed": n}), workshop) for n in range(1, packed)]
    return {"process": one, "packed trial": (train() - one) / (packed - 1)}


def shaped(plm: str) -> str:
    """A PLM's name; of `shape:NAME` a folder with random weights and MiniLM's tokenizer."""
    if not plm.startswith("shape:"):
        return plm
    folder = Path(tempfile.mkdtemp(prefix="tinyattn-")) / plm.removeprefix("shape:")
    torch.manual_seed(0)
    config = read_config(folder.name)
    config.type_vocab_size = 2  # MiniLM's tokenizer tells the texts of a pair apart
    model = transformers.AutoModel.from_config(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(find_plm("minilm")).save_pretrained(folder)
    return str(folder)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first, the median and the third; of a single value all three are that one."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, middle, third = statistics.quantiles(values, n=4)
    return first, middle, third


def table(title: str, times: Mapping[str, list[float]], base: str) -> dict[str, dict[str, float]]:
    """Print and return medians, quartiles and ratios to `base` in the same repeat."""
    print(f"\n{title}\n{'':14}{'ms':>9}{'quartiles':>18}{f'{base} ÷ it':>16}")
    found = {}
    for name, values in times.items():
        first, middle, third = quartiles([1000 * value for value in values])
        pairs = [b / v for v, b in zip(values, times[base], strict=True)]
        found[name] = {"ms": middle, "q1": first, "q3": third, "ratio": statistics.median(pairs)}
        print(f"{name:14}{middle:9.1f}{f'{first:.1f}-{third:.1f}':>18}{found[name]['ratio']:16.2f}")
    return found


def main() -> None:
    """Measure all, print tables, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["sst2", "rte"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("runs/bench/speed.json"))
    parser.add_argument("--plm", default="minilm")
    parser.add_argument("--memory", action="store_true", help="Only memory, in a fresh process.")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    plm = shaped(chosen.plm)
    short = TrainConfig(
        task="agreement", plm=plm, batch_size=16, max_length=32, adapter={"dropout": 0.0}
    )
    if chosen.memory:
        print(json.dumps(memory(short)))
        return
    rng, workshop = np.random.default_rng(0), Workshop()
    found: dict[str, Any] = {"commit": commit()}
    for task, batch in itertools.product(chosen.tasks, STEPS):
        bench = Bench(workshop, task, batch, plm)
        times = interleaved(bench.ways(), chosen.repeats, rng)
        base = "recipe" if "recipe" in times else "solo"
        title = f"{task}, batch {batch}: {'wall' if GPU else 'CPU'} time of a trial's step"
        found[title] = table(title, times, base)
        found[title]["real ÷ processed tokens"] = shares = {
            f"{'packed' if k > 1 else 'solo'} {k} {precision}": bench.real_share(
                k, precision=precision
            )
            for k in (1, *PACKED[batch])
            for precision in (("bf16",) if GPU else ("fp32", "bf16"))
        }
        print("real ÷ processed tokens:", {name: round(share, 3) for name, share in shares.items()})
    with mixed(workshop, plm) as ways:
        title = "8 adapters, 8 short rows each"
        found[title] = table(title, interleaved(ways, chosen.repeats, rng), "a pass each")
    title, ways = "start of a trial", starts(workshop, short)
    found[title] = table(title, interleaved(ways, chosen.repeats, rng), "cold process")
    own = [sys.executable, "-m", "benchmarks.speed", "--memory", "--plm", plm]
    done = subprocess.run(own, check=True, capture_output=True, text=True)
    found["memory"] = json.loads(done.stdout.splitlines()[-1])
    print("\nMB:", {name: round(value) for name, value in found["memory"].items()})
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1))
    print(f"commit {found['commit']}; figures are in {chosen.json}")


if __name__ == "__main__":
    main()
