"""The main job whole, through the real command line, and what it leaves in MLflow.

The PLM is tiny and random, so scores say nothing; that they are the right ones does.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_files import read_adapter
from click.testing import CliRunner, Result
from tiny_plm import save_tiny_plm

from orchestrator.cli import main
from orchestrator.spec.outcome import Outcome
from orchestrator.state.workspace import Workspace
from orchestrator.tracking.provenance import LIBRARIES
from orchestrator.tracking.records import SweepRecord, TrialRun
from orchestrator.tracking.writer import TrackingWriter
from tinyattn.adapters.experts import collapse
from tinyattn.adapters.model import AdaptedModel
from tinyattn.batching.batches import labels_of
from tinyattn.config import TrainConfig, build, set_dotted
from tinyattn.predict import Predictor
from tinyattn.training.model_cache import ModelCache

pytestmark = pytest.mark.slow
SETTINGS = (
    "max_length=32", "max_train_rows=160", "epochs=2", "batch_size=16", "search.trials=6",
    "asha.grace=1", "finalize.finalists=2", "finalize.seeds=2", "finalize.search.trials=2",
)  # fmt: skip


@dataclass
class Job:
    """What the commands printed, and the store they wrote."""

    runs: Path
    plm: str
    printed: dict[str, str]

    @property
    def tracker(self) -> TrackingWriter:
        return Workspace(self.runs).tracker()

    @property
    def sweep(self) -> SweepRecord:
        return self.tracker.find_sweep("job")

    def trials(self, kind: str) -> list[TrialRun]:
        return [t for t in self.tracker.trials_of(self.sweep) if t.kind == kind]

    def ranked(self) -> list[TrialRun]:
        """The search's trials: the best score first, of equals the lower loss, the completed."""

        def key(run: TrialRun) -> tuple[float, float, bool]:
            trial = run.trial
            assert trial.best_loss is not None
            return -(trial.best_score or 0), trial.best_loss, trial.outcome != "completed"

        return sorted(self.trials("trial"), key=key)

    def adapter(self, trial: TrialRun, scratch: Path) -> Path:
        scratch.mkdir(exist_ok=True)
        return self.tracker.download(trial.run_id, "adapter", scratch)


def program(*words: object) -> str:
    """Run the real program; nothing may come on stderr."""
    command = [sys.executable, "-m", "orchestrator.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stderr == ""
    return done.stdout


def command(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_plm(tmp_path_factory.mktemp("plm") / "tiny"))


@pytest.fixture(scope="module")
def job(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Job:
    runs = tmp_path_factory.mktemp("runs")
    place = ("--runs", runs)
    printed = {
        "run": program("sweep", "run", "agreement", f"plm={tiny}", "name=job", *SETTINGS, *place),
        "finalize": program("finalize", "job", *place),
    }
    for name, words in {"promote": [], "force": ["--force"], "report": []}.items():
        result = command("report" if name == "report" else "promote", "job", *words, *place)
        assert result.exit_code == 0, result.output
        printed[name] = result.stdout
    return Job(runs, tiny, printed)


def config_of(trial: TrialRun) -> TrainConfig:
    raw: dict[str, Any] = {}
    for key, value in trial.config.items():
        set_dotted(raw, key, value)
    return build(TrainConfig, raw, "run")


def accuracy(folder: Path, trial: TrialRun, split: str) -> float:
    """Accuracy of a saved adapter, with numpy alone from its outputs on."""
    model_cache = ModelCache()
    rows = getattr(model_cache.data(config_of(trial)), split)
    with contextlib.closing(Predictor(folder, model_cache)) as predictor:
        outputs = predictor.outputs(rows)
    return float(np.mean(outputs.argmax(axis=1) == labels_of(rows)))


def test_only_lines_of_our_own_are_printed(job: Job) -> None:
    lines = job.printed["run"].splitlines()
    start = next(i for i, line in enumerate(lines) if not line.startswith("[0:"))
    assert "6 trials" in lines[0]
    assert lines[start].strip() == "job"  # the leaderboard's title
    assert lines[-1] == f"sweep job is done; next: tinyattn finalize job --runs {job.runs}"
    last = job.printed["finalize"].splitlines()[-1]
    assert last == f"next: tinyattn promote job --runs {job.runs}"


def test_one_experiment_with_children_under_one_parent(job: Job) -> None:
    client = job.tracker.client
    names = [e.name for e in client.search_experiments() if e.name != "Default"]
    assert names == ["agreement on tiny"]
    runs = client.search_runs([job.sweep.experiment_id], max_results=1000)
    children = [run for run in runs if run.info.run_id != job.sweep.run_id]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {job.sweep.run_id}
    kinds = Counter(run.data.tags["tinyattn.kind"] for run in children)
    # 2 finalists and the classifier alone at 4 rates, on 2 seeds each; 2 experts, each collapsed.
    assert kinds == {"trial": 6, "finalist": 12, "expert": 2, "collapsed": 2}
    for run in runs:
        outcome = Outcome(run.data.tags["tinyattn.outcome"])
        assert run.info.status == outcome.run_status == "FINISHED"


def test_asha_stopped_some_and_their_best_is_kept(job: Job, tmp_path: Path) -> None:
    trials = job.trials("trial")
    outcomes = Counter(trial.trial.outcome for trial in trials)
    assert set(outcomes) == {Outcome.COMPLETED, Outcome.STOPPED}
    assert outcomes.total() == 6
    stopped = next(t for t in trials if t.trial.outcome is Outcome.STOPPED)
    assert stopped.trial.evaluations in (1, 3)  # rungs 1 and 3 of 4
    assert not stopped.trial.heldout
    score = accuracy(job.adapter(stopped, tmp_path), stopped, "select")
    assert score == pytest.approx(stopped.trial.best_score, abs=1e-9)


def test_metrics_come_by_evaluation(job: Job) -> None:
    trial = next(t for t in job.trials("trial") if t.trial.outcome is Outcome.COMPLETED)
    for key in ("score", "best_score", "train_loss", "lr", "select/accuracy", "seconds", "epoch"):
        history = job.tracker.client.get_metric_history(trial.run_id, key)
        assert [metric.step for metric in history] == [1, 2, 3, 4], key
    best = [m.value for m in job.tracker.client.get_metric_history(trial.run_id, "best_score")]
    scores = [m.value for m in job.tracker.client.get_metric_history(trial.run_id, "score")]
    assert best == list(np.maximum.accumulate(scores))
    assert set(trial.trial.heldout) == {"accuracy"}


def test_runs_name_config_versions_and_data(job: Job) -> None:
    model_cache = ModelCache()
    for trial in job.trials("trial") + job.trials("finalist"):
        config = config_of(trial)
        assert config.plm == job.plm
        for key, value in trial.trial.params.items():
            assert trial.config[key] == value
        assert trial.tags["data_fingerprint"] == model_cache.data(config).fingerprint
        assert trial.tags["plm_fingerprint"] == model_cache.plm(job.plm).fingerprint
        assert trial.tags["train_rows"] == "160"
        for name in LIBRARIES:
            assert trial.tags[f"version.{name}"] == metadata.version(name)
        assert re.match("[0-9a-f]{40}|release-", trial.tags["commit"])
        assert trial.tags["identity"] == config.identity(
            trial.tags["data_fingerprint"], trial.tags["commit"]
        )
    stored = job.tracker.sweep_config(job.sweep)
    assert stored["search"]["trials"] == 6
    assert stored["train"]["epochs"] == 2


def test_finalists_are_the_best_on_fresh_seeds(job: Job) -> None:
    ranked = job.ranked()
    finalists = [t for t in job.trials("finalist") if t.config["adapter.layers"] == "all"]
    for number, best in enumerate(ranked[:2]):
        of_best = [
            t
            for t in finalists
            if {**t.trial.params, "seed": 0} == {**best.trial.params, "seed": 0}
        ]
        assert sorted(t.config["seed"] for t in of_best) == [1000, 1001], number
        scores = [t.trial.best_score or 0.0 for t in of_best]
        shown = f"{100 * statistics.mean(scores):.2f} ± {100 * statistics.stdev(scores):.2f}"
        assert shown in job.printed["finalize"]


def test_the_classifier_alone_has_the_best_of_four_learning_rates(job: Job) -> None:
    alone = [t for t in job.trials("finalist") if t.config["adapter.layers"] == "none"]
    assert [t.trial.adapter_params for t in alone] == [0] * 8
    best = job.ranked()[0]
    by_rate: dict[float, list[float]] = {}
    for trial in alone:
        assert trial.config["adapter.norm"] == best.config["adapter.norm"]
        times = float(trial.config["optimizer.lr"]) / float(best.config["optimizer.lr"])
        by_rate.setdefault(round(times, 6), []).append(trial.trial.best_score or 0.0)
    assert {times: len(scores) for times, scores in by_rate.items()} == {0.3: 2, 1: 2, 3: 2, 10: 2}
    scores = max(by_rate.values(), key=statistics.mean)
    shown = f"{100 * statistics.mean(scores):.2f} ± {100 * statistics.stdev(scores):.2f}"
    (line,) = [ln for ln in job.printed["finalize"].splitlines() if "│classifier alone" in ln]
    assert shown in line
    assert "(best of 4 learning rates)" in job.printed["finalize"]


def test_experts_descend_from_the_best_finalist(job: Job, tmp_path: Path) -> None:
    experts, collapsed = job.trials("expert"), job.trials("collapsed")
    (parent,) = {t.tags["lineage"] for t in experts}
    finalist = job.tracker.trial(parent)
    assert finalist.kind == "finalist"
    for expert in experts:
        assert expert.config["adapter.num_heads"] == 4
        assert expert.config["seed"] == finalist.config["seed"]
        start = Path(str(expert.config["start.adapter"]))
        ours = read_adapter(job.adapter(finalist, tmp_path / "finalist"))[1]
        assert all(ours[key].equal(value) for key, value in read_adapter(start)[1].items())
        assert expert.trial.params["optimizer.lr"] == expert.config["optimizer.lr"]
    assert {t.tags["lineage"] for t in collapsed} == {t.run_id for t in experts}


def test_the_collapsed_score_is_that_of_the_saved_adapter(job: Job, tmp_path: Path) -> None:
    for number, trial in enumerate(job.trials("collapsed")):
        folder = job.adapter(trial, tmp_path / str(number))
        card, weights = read_adapter(folder)
        assert card.adapter.num_heads == 1
        assert accuracy(folder, trial, "select") == pytest.approx(trial.trial.best_score, abs=1e-9)
        heldout = accuracy(folder, trial, "heldout")
        assert heldout == pytest.approx(trial.trial.heldout["accuracy"], abs=1e-9)
        expert = job.tracker.trial(trial.tags["lineage"])
        change = (trial.trial.best_score or 0) - (expert.trial.best_score or 0)
        assert trial.trial.last.others["collapse_score_change"] == pytest.approx(change, abs=1e-12)
        # The same collapse of the expert's own file gives the same weights.
        plm = ModelCache().plm(job.plm)
        model = AdaptedModel(plm.model)
        model.load(job.adapter(expert, tmp_path / f"expert{number}"), plm)
        again = collapse(model.adapter(), plm.model, trial.tags["collapse_method"])
        model.detach()
        values = again.state_dict()
        assert sum(v.numel() for v in values.values()) == sum(v.numel() for v in weights.values())
        assert trial.trial.adapter_params == next(
            t.trial.adapter_params
            for t in job.trials("trial")
            if t.trial.outcome is Outcome.COMPLETED
        )


def test_the_winner_is_promoted_and_predicts(job: Job, tmp_path: Path) -> None:
    winner = job.tracker.trial(job.sweep.tags["winner"])
    # The tiny PLM has learned nothing, so that its first champion needs force.
    first = job.printed["promote"]
    assert re.search(
        r"version 1 is registered; the alias did not move: accuracy \d+\.\d\d against "
        r"\d+\.\d\d of the classifier alone \(finalists-\S+, its best run\) "
        r"on [\d,]+ held-out rows, p = ",
        first,
    )
    assert "at the level 0.05; 0.05 of the error budget of 0.10 is left" in first
    forced = r"version 1 is the champion: forced, though accuracy \d+\.\d\d against"
    assert re.search(forced, job.printed["force"])
    assert "fresh seeds" not in first
    file = tmp_path / "rows.jsonl"
    texts = ["the dogs near the cat run .", "the dogs near the cat runs .", "a"]
    file.write_text("".join(json.dumps({"sentence": text}) + "\n" for text in texts))
    result = command("predict", "agreement", file, "--runs", job.runs)
    assert result.exit_code == 0, result.output
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    with contextlib.closing(Predictor(job.adapter(winner, tmp_path))) as predictor:
        for found, wanted in zip(
            answers, predictor.predict([{"sentence": t} for t in texts]), strict=True
        ):
            assert found["label"] == wanted["label"]
            assert found["probabilities"] == pytest.approx(wanted["probabilities"], abs=5e-5)
    again = command("promote", "job", "--runs", job.runs)
    assert "it is the champion already" in again.stdout


def test_a_moved_folder_predicts_promotes_and_reports(job: Job, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"sentence": "the dogs near the cat run ."}) + "\n")
    before = command("predict", "agreement", file, "--runs", job.runs).stdout
    moved, aside = tmp_path / "moved", job.runs.with_name("aside")
    shutil.copytree(job.runs, moved)
    job.runs.rename(aside)
    try:
        assert command("predict", "agreement", file, "--runs", moved).stdout == before
        assert "champion already" in command("promote", "job", "--runs", moved).stdout
        report = command("report", "job", "--runs", moved)
        assert report.stdout.startswith(f"the report is {moved}")
        assert not job.runs.exists()
    finally:
        aside.rename(job.runs)


def test_report_and_figures(job: Job) -> None:
    page = Path(job.printed["report"].strip().removeprefix("the report is "))
    assert page.is_file()
    assert "http://" not in page.read_text().replace("http://www.w3.org", "")
    figures = [item.path for item in job.tracker.client.list_artifacts(job.sweep.run_id, "report")]
    figures += [i.path for i in job.tracker.client.list_artifacts(job.sweep.run_id, "figures")]
    assert any(path.endswith(".png") for path in figures)


def test_leaderboard_in_every_form(job: Job) -> None:
    place = ("--sweep", "job", "--runs", job.runs)
    rows = json.loads(command("leaderboard", *place, "--json").stdout)
    table = list(csv.DictReader(io.StringIO(command("leaderboard", *place, "--csv").stdout)))
    assert len(rows) == len(table) == 22
    assert [row["run_id"] for row in rows] == [row["run_id"] for row in table]
    scores = [row["score"] for row in rows]
    known = {t.run_id: t.trial.best_score for t in job.tracker.trials_of(job.sweep)}
    assert scores == [known[row["run_id"]] for row in rows]
    shown = command("leaderboard", "agreement", "--runs", job.runs).stdout
    assert f" {rows[0]['trial']} " in shown


# ---- tasks of one's own, and the protocol `paper` ----

WORDS = ("calm", "mild", "warm", "loud", "wild", "fierce")


def scores_task(folder: Path) -> None:
    """A regression: how many strong words a pair of texts has, 0 to 5."""
    rng = np.random.RandomState(0)
    for split, count in (("train", 120), ("validation", 40)):
        lines = ["first,second,score"]
        for i in range(count):
            words = rng.randint(0, 6, size=6)
            text = [WORDS[w] for w in words]
            first, second = f"{i} {' '.join(text[:3])}", " ".join(text[3:])
            lines.append(f'"{first}","{second}",{words.mean():.3f}')
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    task = {
        "name": "strength", "folder": ".", "text_columns": ["first", "second"],
        "label_column": "score", "labels": None, "score_range": [0, 5],
        "metrics": ["pearson", "spearman"],
    }  # fmt: skip
    (folder / "strength.yaml").write_text(json.dumps(task))


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYATTN_CACHE", str(tmp_path / "cache"))


TRAIN = ("max_length=32", "epochs=2", "batch_size=16", "optimizer.lr=5e-3")


@pytest.mark.long
@pytest.mark.rare
@pytest.mark.usefixtures("caches")
def test_a_regression_of_ones_own_under_the_papers_protocol(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scores_task(tmp_path)
    alone = command("train", "task=strength.yaml", f"plm={tiny}", *TRAIN)
    assert alone.exit_code == 0, alone.output
    assert "pearson" in alone.stdout
    for metric in ("pearson", "spearman"):
        assert f"held-out {metric}: " in alone.stdout

    # Relative paths: workers must find what the command line found.
    printed = program(
        "sweep", "run", "agreement", "task=strength.yaml", f"plm={tiny}", "protocol=paper",
        *TRAIN[:-1], "search.trials=2", "resources.concurrent=1", "name=paper",
    )  # fmt: skip
    assert "| paper" in printed.replace("│", "|")
    tracker = Workspace(tmp_path / "runs").tracker()
    trials = tracker.trials_of(tracker.find_sweep("paper"))
    assert {t.protocol for t in trials} == {"paper"}
    assert not any(t.trial.heldout for t in trials)
    assert all({"pearson", "spearman"} <= t.trial.last.metrics.keys() for t in trials)

    refused = command("promote", "paper", "--runs", tmp_path / "runs")
    assert refused.exit_code == 2
    assert "protocol 'paper' selects on the validation rows" in refused.stderr
    assert "--force" in refused.stderr
    forced = command("promote", "paper", "--force", "--runs", tmp_path / "runs")
    assert forced.exit_code == 0, forced.output
    assert "is the champion: forced" in forced.stdout


@pytest.mark.usefixtures("caches")
def test_label_names_in_a_csv(tiny: str, tmp_path: Path) -> None:
    rows = [("late invoice", "billing"), ("no signal", "network"), ("lost parcel", "other")]
    lines = ["text,team", *(f"{text} {i},{team}" for i in range(30) for text, team in rows)]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    task = {
        "name": "tickets", "folder": ".", "text_columns": "text", "label_column": "team",
        "labels": ["billing", "network", "other"], "metrics": ["accuracy"],
    }  # fmt: skip
    (tmp_path / "tickets.yaml").write_text(json.dumps(task))
    words = (f"task={tmp_path / 'tickets.yaml'}", f"plm={tiny}", "max_length=16", "epochs=15")
    result = command("train", *words, "optimizer.lr=0.02", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    # The words give the class away: a classifier on random but fixed features finds it.
    held = [line for line in result.stdout.splitlines() if line.startswith("held-out accuracy")]
    score, _, rows = held[0].split(": ")[1].partition(" on ")
    assert float(score) > 90
    assert rows == "22 rows"
    with contextlib.closing(Predictor(tmp_path / "out" / "adapter")) as predictor:
        assert predictor.predict([{"text": "no signal 7"}])[0]["label"] == "network"

    one, other = str(tmp_path / "out" / "adapter"), str(tmp_path / "other")
    shutil.copytree(one, other)
    mixed = [{"text": "no signal 7", "adapter": name} for name in (one, other)]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mixed))
    result = command("predict", f"{one},{other}", tmp_path / "mixed.jsonl")
    assert [json.loads(line)["label"] for line in result.stdout.splitlines()] == ["network"] * 2
    result = command("predict", tmp_path / "out", tmp_path / "mixed.jsonl")
    assert [json.loads(line)["label"] for line in result.stdout.splitlines()] == ["network"] * 2


@pytest.mark.usefixtures("caches")
def test_mnli_reports_its_mismatched_rows(tiny: str, tmp_path: Path) -> None:
    folder = tmp_path / "glue" / "mnli"
    folder.mkdir(parents=True)
    for split, count in (("train", 90), ("validation_matched", 30), ("validation_mismatched", 20)):
        rows = [
            {"premise": f"{split} says {i}", "hypothesis": f"it is {i % 7}", "label": i % 3}
            for i in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    result = command("train", "task=mnli", f"plm={tiny}", *TRAIN, "--data", tmp_path)
    assert result.exit_code == 0, result.output
    assert "held-out accuracy: " in result.stdout
    assert "held-out accuracy_mismatched: " in result.stdout
    numbers = dict(re.findall(r"held-out (\w+): ([\d.]+)", result.stdout))
    matched, mismatched = float(numbers["accuracy"]), float(numbers["accuracy_mismatched"])
    # Table 8's overall accuracy is that of all rows: here 30 and 20.
    expected = (30 * matched + 20 * mismatched) / 50
    assert float(numbers["accuracy_overall"]) == pytest.approx(expected, abs=0.01)
