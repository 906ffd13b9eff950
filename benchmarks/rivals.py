"""A whole search, against what a user would put together today.

The rival, kept simple and idiomatic: a Ray Tune function trainable around Hugging Face's `Trainer`
and peft's LoRA (r = 8 on query and value), OptunaSearch, ASHAScheduler, MLflowLoggerCallback. Same
PLM, rows, trials, epochs, batches, two evaluations an epoch, the same stopping rule, one core a
trial. Wall time from the start of the process to its end, in an order that turns around.

    pip install -c constraints.txt -e '.[rivals]'
    TINYATTN_DATA=... python -m benchmarks.rivals [--trials 4] [--rows 2000] [--epochs 2]
                                                  [--repeats 3] [precision=bf16 ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from orchestrator.provenance import commit

LOW, HIGH, BATCH, LENGTH, GRACE, REDUCTION = 5e-4, 5e-3, 8, 128, 2, 3


def sweep_file(folder: Path, trials: int, rows: int, epochs: int) -> Path:
    """Our side."""
    content = {
        "train": {
            "task": "sst2", "plm": "minilm", "epochs": epochs, "batch_size": BATCH,
            "max_length": LENGTH, "max_train_rows": rows, "adapter": {"dropout": 0.0},
        },
        "space": {"optimizer.lr": {"type": "log_uniform", "low": LOW, "high": HIGH}},
        "search": {"trials": trials},
        "asha": {"grace": GRACE, "reduction": REDUCTION, "mode": "stop"},
    }  # fmt: skip
    file = folder / "rival.yaml"
    file.write_text(json.dumps(content))
    return file


def ours(folder: Path, chosen: argparse.Namespace) -> None:
    """Run our search in a process of its own."""
    file = sweep_file(folder, chosen.trials, chosen.rows, chosen.epochs)
    words = ["tinyattn", "sweep", "run", str(file), "name=ours", *chosen.overrides]
    run([str(Path(sys.executable).with_name(words[0])), *words[1:], "--runs", str(folder)])


def stock(folder: Path, chosen: argparse.Namespace) -> None:
    """Run the rival's search in a process of its own."""
    numbers = [str(chosen.trials), str(chosen.rows), str(chosen.epochs)]
    run([sys.executable, "-m", "benchmarks.rivals", "--stock", str(folder), *numbers])


def run(words: list[str]) -> None:
    """Run a command; its output only if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])


def splits(rows: int) -> tuple[Any, Any]:
    """The rows that our side trains and selects on, as token ids and labels."""
    from tinyattn.config import TrainConfig
    from tinyattn.workshop import Workshop

    config = TrainConfig(task="sst2", plm="minilm", max_length=LENGTH, max_train_rows=rows)
    data = Workshop().data(config)

    def plain(split: Any) -> Any:
        return split.rows.select_columns(["input_ids", "label"]).rename_column("label", "labels")

    return plain(data.train), plain(data.select)


def trainable(config: dict[str, Any]) -> None:
    """One LoRA trial."""
    import numpy as np
    import peft
    import torch
    import transformers
    from ray import tune

    from tinyattn.plm import find_plm

    torch.set_num_threads(1)
    place = find_plm("minilm")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place, num_labels=2)
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"])
    train, select = splits(config["rows"])
    half = max(1, -(-len(train) // BATCH) // 2)

    class Report(transformers.TrainerCallback):
        """Tells Tune every evaluation."""

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Any, **rest: Any
        ) -> None:
            evaluation = state.global_step // half
            tune.report({"score": metrics["eval_accuracy"], "evaluation": evaluation})

    transformers.Trainer(
        model=peft.get_peft_model(model, lora),
        args=transformers.TrainingArguments(
            output_dir=tempfile.mkdtemp(), learning_rate=config["lr"], report_to=[],
            num_train_epochs=config["epochs"], per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=32, eval_strategy="steps", eval_steps=half,
            save_strategy="no", use_cpu=True, disable_tqdm=True, logging_strategy="no",
        ),
        train_dataset=train,
        eval_dataset=select,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda found: {
            "accuracy": float((np.argmax(found.predictions, -1) == found.label_ids).mean())
        },
        callbacks=[Report()],
    ).train()  # fmt: skip


def search(folder: Path, trials: int, rows: int, epochs: int) -> None:
    """The rival's search."""
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    tune.Tuner(
        trainable,
        param_space={"lr": tune.loguniform(LOW, HIGH), "rows": rows, "epochs": epochs},
        tune_config=tune.TuneConfig(
            metric="score", mode="max", num_samples=trials, search_alg=OptunaSearch(),
            scheduler=ASHAScheduler(
                time_attr="evaluation", grace_period=GRACE, max_t=2 * epochs,
                reduction_factor=REDUCTION,
            ),
        ),
        run_config=tune.RunConfig(
            storage_path=str(folder / "ray"),
            callbacks=[
                MLflowLoggerCallback(
                    tracking_uri=f"sqlite:///{folder}/stock.db", experiment_name="stock"
                )
            ],
        ),
    ).fit()  # fmt: skip


def main() -> None:
    """Run both sides in turn, and print medians and the ratio."""
    if "--stock" in sys.argv:
        folder, *numbers = sys.argv[sys.argv.index("--stock") + 1 :]
        search(Path(folder), *map(int, numbers))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="Of our side, as precision=bf16.")
    chosen = parser.parse_intermixed_args()
    sides = {"ours": ours, "stock": stock}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(chosen.repeats):
        for name in list(sides)[:: 1 if repeat % 2 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                begin = time.perf_counter()
                sides[name](Path(folder), chosen)
                seconds[name].append(time.perf_counter() - begin)
            print(f"{name}: {seconds[name][-1]:.1f} s", flush=True)
    ratio = statistics.median(seconds["stock"]) / statistics.median(seconds["ours"])
    print(
        f"stock ÷ ours {ratio:.2f}; {chosen.trials} trials, {chosen.rows} rows, commit {commit()}"
    )


if __name__ == "__main__":
    main()
