"""A sweep from its file to its best trial: the page to read first.

inspect   load PLM and data once; a mistake ends here                    (preflight.py)
search    Optuna suggests, ASHA stops, Ray Tune runs, MLflow remembers   (runner.py)
close     every run has an outcome, whatever happened
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config import Sweep
from orchestrator.home import Home
from orchestrator.outcome import Outcome
from orchestrator.preflight import Facts, inspect
from orchestrator.provenance import code_tags
from orchestrator.runner import Batch, Ended, InterruptedSweepError, run_batch
from orchestrator.scheduler import Asha
from orchestrator.search import OptunaSearcher
from orchestrator.tracking import Tracker
from tinyattn.config import build, set_dotted
from tinyattn.errors import ConfigError, TinyAttnError
from tinyattn.workshop import Workshop

STUDY_FILE = "study.journal"
CHANGEABLE = ("finalize", "resources")
"""Sections that may be given anew after the search."""


def run_sweep(sweep: Sweep, home: Home) -> list[Ended]:
    """Run a new sweep to its end; Ray must be running.

    Raises:
        UsageError: something does not fit; nothing was started.
        InterruptedSweepError: Ctrl-C; every run is closed as `interrupted`.
        TinyAttnError: no trial produced a score.
    """
    tracker = home.tracker()
    facts = inspect(sweep, Workshop(home.data_dir))
    tracker.start_sweep(
        name=sweep.name,
        task=facts.task,
        plm=sweep.train.plm,
        protocol=sweep.train.protocol,
        config=sweep.model_dump(mode="json"),
        tags=run_tags(facts),
    )
    try:
        ended = _search(sweep, home, tracker, facts)
    except (InterruptedSweepError, KeyboardInterrupt):
        tracker.close_all(Outcome.INTERRUPTED)
        raise
    except BaseException:
        tracker.close_all(Outcome.FAILED)
        raise
    tracker.end_sweep(Outcome.COMPLETED)
    _refuse_empty(ended)
    return ended


def _search(sweep: Sweep, home: Home, tracker: Tracker, facts: Facts) -> list[Ended]:
    folder = home.sweep_folder(sweep.name)
    searcher = OptunaSearcher(sweep.space, sweep.search, folder / STUDY_FILE, sweep.name)
    asha = sweep.asha
    batch = Batch(
        name="search",
        title=sweep.name,
        kind="trial",
        base=sweep.train,
        trials=sweep.search.trials,
        evaluations=facts.evaluations,
        resources=sweep.resources,
        tags=run_tags(facts),
    )
    try:
        return run_batch(
            batch,
            folder=folder,
            tracker=tracker,
            searcher=searcher,
            scheduler=None if asha is None else Asha(asha.grace, asha.reduction, facts.evaluations),
            data_dir=home.data_dir,
        )
    finally:
        searcher.finish(Outcome.INTERRUPTED)


def sweep_as_it_ran(tracker: Tracker, name: str, overrides: Mapping[str, Any]) -> Sweep:
    """Return a sweep of the store, with `overrides` of its finalize and resources sections.

    Raises:
        UsageError: there is no such sweep, or an override changes what has run.
    """
    stored = tracker.sweep_config(tracker.find_sweep(name))
    for key, value in overrides.items():
        if key.split(".")[0] not in CHANGEABLE:
            raise ConfigError(
                f"override {key}: the sweep has run; changeable are {', '.join(CHANGEABLE)}"
            )
        set_dotted(stored, key, value)
    return build(Sweep, stored, f"sweep {name}")


def run_tags(facts: Facts) -> dict[str, str]:
    """What every run of the sweep records of its origin."""
    return {
        "data_fingerprint": facts.data_fingerprint,
        "plm_fingerprint": facts.plm_fingerprint,
        "train_rows": str(facts.train_rows),
        "truncated_rows": str(facts.truncated_rows),
        "commit": code_tags().get("commit", "unknown"),
    }


def _refuse_empty(ended: list[Ended]) -> None:
    if any(trial.outcome in (Outcome.COMPLETED, Outcome.STOPPED) for trial in ended):
        return
    causes = {str(trial.result.get("error") or trial.outcome.value) for trial in ended}
    raise TinyAttnError(
        f"none of {len(ended)} trials reached a score: {'; '.join(sorted(causes)) or 'none ran'}"
    )
