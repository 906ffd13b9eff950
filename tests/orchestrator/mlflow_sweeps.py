"""Sweeps and trials in a real MLflow store, written as the scheduler writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.spec.outcome import Outcome
from orchestrator.spec.result import Result
from orchestrator.tracking.suite_run import SuiteRun
from orchestrator.tracking.writer import TrackingWriter
from tinyattn.adapters.checkpoint import CONFIG_FILE, AdapterCard, PlmCard
from tinyattn.config import AdapterConfig, TrainConfig


class Sweeps:
    """Writes sweeps and trials as the scheduler does, in one line each."""

    def __init__(self, tracker: TrackingWriter, folder: Path) -> None:
        self.tracker = tracker
        self.folder = folder

    def start(
        self, name: str = "first", task: str = "sst2", suite: SuiteRun | None = None, **changes: str
    ) -> str:
        """Start a sweep; returns its run id."""
        fields = {"plm": "roberta-large", "protocol": "heldout"} | changes
        config = {"name": name, "space": {"optimizer.lr": {"type": "log_uniform"}}}
        self.settings = {"task": task, "plm": fields["plm"], "protocol": fields["protocol"]}
        self.runs = self.tracker.start_sweep(
            name=name, task=task, config=config, tags={}, suite=suite, **fields
        )
        return self.runs.run_id

    def trial(
        self,
        trial_id: str,
        scores: list[float],
        outcome: Outcome | None = Outcome.COMPLETED,
        *,
        heldout: float | None = None,
        lr: float = 1e-3,
        kind: str = "trial",
        params: tuple[int, int] = (98_304, 2_050),
        adapter: bool = False,
        overrides: dict[str, object] | None = None,
        carve: str | None = None,
        loss: float | None = None,
        one_class: bool | None = None,
    ) -> str:
        """Run a trial through its evaluations; outcome None leaves it running.

        `loss` is that of all of them, and `one_class` holds for all.
        """
        searched = {"optimizer.lr": lr, **(overrides or {})}
        config = TrainConfig(**self.settings).with_overrides(searched)
        tags = {"identity": f"id-{trial_id}"} | ({} if carve is None else {"carve": carve})
        self.runs.start_trial(trial_id, config=config, params=searched, tags=tags, kind=kind)
        for index in range(1, len(scores) + 1):
            found = self.result(index, scores, heldout if index == len(scores) else None, params)
            told: dict[str, Any] = {"select_loss": loss, "best_loss": loss}
            told |= {"one_class": one_class, "best_one_class": one_class}
            self.runs.log_evaluation(trial_id, replace(found, **told))
        if outcome is not None:
            self.runs.end_trial(
                trial_id, outcome, adapter=self.adapter(trial_id) if adapter else None
            )
        self.tracker.settle(30)
        return self.runs.run_of(trial_id)

    def adapter(self, trial_id: str) -> Path:
        """An adapter folder with a card, whose lineage names the trial, and no weights."""
        folder = self.folder / trial_id / "adapter"
        folder.mkdir(parents=True)
        card = AdapterCard(
            adapter=AdapterConfig(),
            plm=PlmCard(name="p", revision="", family="bert", hidden_size=4, fingerprint="0"),
            num_outputs=2,
            lineage={"trial": trial_id},
        )
        (folder / CONFIG_FILE).write_text(card.sealed().model_dump_json())
        return folder

    @staticmethod
    def result(
        index: int, scores: list[float], heldout: float | None, params: tuple[int, int]
    ) -> Result:
        """One evaluation as the trainer reports it."""
        best = max(scores[:index])
        return Result(
            evaluation=index, total=len(scores), epoch=index / 2, step=100 * index,
            score=scores[index - 1], best_score=best,
            best_index=scores.index(best) + 1, train_loss=1 / index, lr=1e-3,
            seconds=10.0 * index, rows_per_second=50.0,
            metrics={"accuracy": scores[index - 1]},
            heldout={} if heldout is None else {"accuracy": heldout},
            adapter_params=params[0], classifier_params=params[1],
            peak_memory_mb=500.0,
        )  # fmt: skip
