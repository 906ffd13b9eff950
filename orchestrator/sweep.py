"""A sweep from its file to its best trial: the page to read first.

prepare   load PLM and data once; a mistake ends here                    (preflight.py)
search    Optuna suggests, ASHA stops, Ray Tune runs, MLflow remembers   (runner.py)
close     every run has an outcome, whatever happened
resume    the same search again: its journal says where it is            (journal.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.batch import Batch
from orchestrator.config import Sweep, apply_overrides, check
from orchestrator.definition import Definition, Origin
from orchestrator.home import Home
from orchestrator.journal import refuse_damaged
from orchestrator.nodes import concurrency
from orchestrator.outcome import Outcome
from orchestrator.preflight import Facts, check_warmup, inspect, warmup_note
from orchestrator.provenance import code_tags
from orchestrator.runner import Ended, closed_in_any_case, run_batch
from orchestrator.search import OptunaSearcher
from orchestrator.tracking import Tracker
from tinyattn.config import build
from tinyattn.errors import ConfigError, NameTakenError, TinyAttnError, UsageError
from tinyattn.workshop import Workshop

STUDY_FILE = "study.journal"
CHANGEABLE = ("finalize", "resources")
"""Sections that may be given anew after the search."""


def prepare(sweeps: Sequence[Sweep], home: Home) -> list[Facts]:
    """Find out what the sweeps will meet, and open the store; a mistake in any ends here.

    Raises:
        UsageError: a name is in use, or PLM, data or a value of a space do not fit.
        StorageError: too little space, or the store cannot be opened or made.
    """
    home.require_space()
    for sweep in sweeps:
        _refuse_taken(sweep.name, home)
    workshop = Workshop(home.data_dir, device="cpu")  # GPUs are for trials
    facts = [inspect(sweep, workshop) for sweep in sweeps]
    for sweep, found in zip(sweeps, facts, strict=True):
        check_warmup(sweep, found.fewest_rows)
    home.tracker(create=True)
    return facts


def _refuse_taken(name: str, home: Home) -> None:
    if home.has_store() and not home.tracker().name_is_free(name):
        raise NameTakenError(
            f"a sweep called '{name}' exists already; choose another with name=..., go on with it "
            f"by `tinyattn sweep resume {name}`, or see it by `tinyattn leaderboard --sweep {name}`"
        )
    if home.path_of(name).exists():  # its study would be gone on with
        raise NameTakenError(
            f"{home.path_of(name)} is there from a sweep of another store; choose another name "
            "with name=..., or move the folder away"
        )


def run_sweep(sweep: Sweep, facts: Facts, home: Home, origin: Origin | None = None) -> list[Ended]:
    """Run a new sweep, which was prepared, to its end; Ray must be running.

    Args:
        sweep: what to run.
        facts: what `prepare` found.
        home: where it is kept.
        origin: file and overrides it was read from; None: it was made in code.

    Raises:
        InterruptedSweepError: Ctrl-C; every run is closed as `interrupted`.
        TinyAttnError: a trial needs more than there is, or none produced a score.
    """
    concurrency(sweep.resources)
    with home.lock(sweep.name):
        if Definition.is_in(home.path_of(sweep.name)):  # another process was quicker
            _refuse_taken(sweep.name, home)
        Definition.of(sweep, facts, origin).write(home.path_of(sweep.name))
        return _go_on(sweep, facts, home)


def resumable(
    name: str, home: Home, changes: Mapping[str, Any], *, as_it_ran: bool = False
) -> Definition:
    """Return the definition of a sweep to go on with, with `changes` such as more trials.

    Args:
        name: the sweep.
        home: where it is kept.
        changes: overrides such as `{"search.trials": 40}`.
        as_it_ran: also where the file it was read from has changed since.

    Raises:
        UsageError: it is not there, a change does not fit, or its file has changed.
    """
    definition = Definition.read(home.path_of(name), name)
    if not as_it_ran:
        definition.refuse_changed_file()
    trials = definition.sweep().search.trials
    if changes.get("search.trials", trials) < trials:
        raise UsageError(f"sweep '{name}' has {trials} trials; extend it to more")
    return definition.changed(changes)


def resume_sweep(
    definition: Definition, home: Home, say: Callable[[str], None] = lambda line: None
) -> list[Ended]:
    """Go on with a sweep after whatever ended it; Ray must be running.

    Args:
        definition: as `resumable` returns it.
        home: where it is kept.
        say: told what a new sweep would be refused for.

    Raises:
        UsageError: somebody works on it, or its data or PLM are other ones now.
        As `run_sweep`.
    """
    sweep = definition.sweep()
    concurrency(sweep.resources)
    with home.lock(sweep.name):
        facts = inspect(sweep, Workshop(home.data_dir, device="cpu"))
        definition.refuse_other(facts)
        for note in warmup_note(sweep, facts):
            say(note)
        definition.write(home.path_of(sweep.name))
        return _go_on(sweep, facts, home)


def _go_on(sweep: Sweep, facts: Facts, home: Home) -> list[Ended]:
    """Bring a sweep to its end from wherever it is; a new one is at its beginning."""
    tracker = home.tracker(create=True)
    names = tracker.names_of_trials(sweep.name)
    refuse_damaged(home.path_of(sweep.name), names, needed="search")
    with closed_in_any_case(tracker, f"sweep resume {sweep.name}"):
        tracker.open_sweep(
            name=sweep.name,
            task=facts.task,
            plm=sweep.train.plm,
            protocol=sweep.train.protocol,
            config=sweep.model_dump(mode="json"),
            tags=run_tags(facts),
        )
        ended = _search(sweep, home, tracker, facts)
        _refuse_empty(ended)
    return ended


def _search(sweep: Sweep, home: Home, tracker: Tracker, facts: Facts) -> list[Ended]:
    depot = home.depot(sweep.name)
    study = depot.folder / STUDY_FILE
    searcher = OptunaSearcher(sweep.space, sweep.search, study, sweep.name, sweep.asha)
    batch = Batch(
        name="search",
        title=sweep.name,
        kind="trial",
        base=sweep.train,
        trials=sweep.search.trials,
        evaluations=facts.evaluations,
        resources=sweep.resources,
        tags=run_tags(facts),
        asha=sweep.asha,
    )
    return run_batch(batch, searcher, depot=depot, tracker=tracker, data_dir=home.data_dir)


def sweep_as_it_ran(tracker: Tracker, name: str, overrides: Mapping[str, Any]) -> Sweep:
    """Return a sweep of the store, with `overrides` of its finalize and resources sections.

    Raises:
        UsageError: there is no such sweep, or an override changes what has run.
    """
    stored = tracker.sweep_config(tracker.find_sweep(name))
    for key in overrides:
        if key.split(".")[0] not in CHANGEABLE:
            raise ConfigError(
                f"override {key}: the sweep has run; changeable are {', '.join(CHANGEABLE)}"
            )
    apply_overrides(stored, overrides)
    sweep = build(Sweep, stored, f"sweep {name}")
    check(sweep, f"sweep {name}")
    return sweep


def run_tags(facts: Facts) -> dict[str, str]:
    """What every run of the sweep records of its origin."""
    carve = {} if facts.carve is None else {"carve": str(facts.carve)}
    return {
        **carve,
        "data_fingerprint": facts.data_fingerprint,
        "plm_fingerprint": facts.plm_fingerprint,
        "train_rows": str(facts.train_rows),
        "truncated_rows": str(facts.truncated_rows),
        "primary_metric": facts.primary_metric,
        "commit": code_tags().get("commit", "unknown"),
    }


def _refuse_empty(ended: list[Ended]) -> None:
    if any(trial.outcome in (Outcome.COMPLETED, Outcome.STOPPED) for trial in ended):
        return
    # Of an error from outside this project the last line; its traceback is in MLflow.
    causes = {(t.error or t.outcome.value).splitlines()[-1] for t in ended}
    raise TinyAttnError(
        f"none of {len(ended)} trials reached a score: {'; '.join(sorted(causes)) or 'none ran'}"
    )
