"""Running a reproduction: sweeps that begin by themselves, then those that begin from them.

Its sweeps are a suite, which grows by those of other tables. The same call goes on where an earlier
one ended, whatever ended it; a sweep that has ended does not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.comparison.run import refuse_other
from orchestrator.reproduction.methods import METHODS
from orchestrator.reproduction.suite import Settings, Start, suite_of, waits
from orchestrator.reproduction.tables import Need
from orchestrator.spec.batch import SEARCH
from orchestrator.spec.command import Command
from orchestrator.spec.facts import Facts
from orchestrator.spec.outcome import Outcome
from orchestrator.spec.suite import Suite
from orchestrator.spec.trial import Trial
from orchestrator.state.checkpoint_store import best_adapter
from orchestrator.state.definition import Definition
from orchestrator.state.event_log import read_event_log
from orchestrator.state.ranking import best_of, standing_of
from orchestrator.state.suite_definition import SuiteDefinition, clear_unbegun, note_command
from orchestrator.state.workspace import Workspace
from orchestrator.suite import (
    ResumableSuite,
    SuiteResult,
    grow_suite,
    prepare_growth,
    prepare_suite,
    resume_suite,
    run_suite,
)
from orchestrator.sweep import resumable
from tinyattn.errors import StorageError


@dataclass(frozen=True)
class Reproduction:
    """The sweeps of some tables, as one suite."""

    name: str
    """Of the suite."""
    needs: tuple[Need, ...]
    """Its sweeps; those that others begin from come first."""
    settings: Settings
    """What is other than in the paper."""
    command: Command
    """What was typed."""

    def sweep(self, need: Need) -> str:
        """Return the name of a sweep of it."""
        return f"{self.name}-{need.name}"

    @property
    def first(self) -> dict[Need, Start | None]:
        """Its sweeps that begin by themselves."""
        return {need: None for need in self.needs if not waits(need, self.settings)}

    @property
    def later(self) -> list[Need]:
        """Its sweeps that begin from others."""
        return [need for need in self.needs if waits(need, self.settings)]


@dataclass(frozen=True)
class Stage:
    """Sweeps that run together, checked; nothing of them has started by this."""

    suite: Suite
    is_new: bool
    """Whether the suite is yet to be begun."""
    new: Mapping[str, Facts]
    """Facts of the sweeps that have not begun, by their names within the suite."""
    unfinished: Sequence[str]
    """Names within the suite of the sweeps that have begun and not completed."""

    @property
    def is_done(self) -> bool:
        """Whether all of it has run."""
        return not (self.is_new or self.new or self.unfinished)


@dataclass
class Trained:
    """What became of the sweeps of a reproduction; those that are not named are done."""

    failed: dict[str, str] = field(default_factory=dict)
    """Why, by their names within the suite."""

    def take_in(self, result: SuiteResult) -> None:
        """Note what failed, and what a user stopped."""
        self.failed |= {name: str(error) for name, error in result.failed.items()}
        self.failed |= dict.fromkeys(result.stopped, "was stopped on its own")


def best_trial(reproduction: Reproduction, need: Need, workspace: Workspace) -> Trial | None:
    """Return the best trial of a sweep; None: it has none yet."""
    log = workspace.path_of(reproduction.sweep(need)) / f"{SEARCH}.jsonl"
    return best_of(read_event_log(log).values(), standing_of) if log.exists() else None


def prepare(reproduction: Reproduction, workspace: Workspace) -> Stage:
    """Check the sweeps that begin by themselves, before any starts or goes on.

    Raises:
        UsageError: what does not fit; or a suite of this name was begun with other settings.
        StorageError: as `prepare_suite`.
    """
    return _stage(reproduction, reproduction.first, workspace)


def is_done(reproduction: Reproduction, first: Stage, workspace: Workspace) -> bool:
    """Return whether all sweeps have run, so that no trial needs a machine."""
    if not first.is_done:
        return False
    ended = completed(workspace)
    return all(reproduction.sweep(need) in ended for need in reproduction.later)


def train(
    reproduction: Reproduction, first: Stage, workspace: Workspace, say: Callable[[str], None]
) -> Trained:
    """Run what is left of a reproduction; Ray must be running.

    Args:
        reproduction: what is wanted.
        first: from `prepare`.
        workspace: where its sweeps are kept.
        say: takes progress messages.

    Raises:
        InterruptedSweepError: Ctrl-C.
        TinyAttnError: what concerns all sweeps failed.
    """
    found = Trained()
    _run(first, reproduction, workspace, say, found)
    starts: dict[Need, Start | None] = {}
    for need in reproduction.later:
        parent = Need(str(METHODS[need.method].parent), need.task)
        start = None
        if parent.name not in found.failed:  # else its best trial may yet be another one
            start = _start(reproduction, parent, workspace)
        if start is None:
            found.failed[need.name] = f"{parent.name}, which it begins from, has not ended"
        else:
            starts[need] = start
    if starts:
        later = _stage(reproduction, starts, workspace)
        _run(later, reproduction, workspace, say, found)
    found.failed |= _lost_seeds(reproduction, workspace, found.failed)
    return found


def _lost_seeds(
    reproduction: Reproduction, workspace: Workspace, failed: Mapping[str, str]
) -> dict[str, str]:
    """Return why sweeps over seeds lack one, by their names: a mean over the others is another."""
    found = {}
    for need in reproduction.needs:
        log = workspace.path_of(reproduction.sweep(need)) / f"{SEARCH}.jsonl"
        if not METHODS[need.method].seeds or need.name in failed or not log.exists():
            continue
        for trial in read_event_log(log).values():
            if trial.outcome is not None and trial.outcome is not Outcome.COMPLETED:
                seed = trial.params.get("seed")
                found[need.name] = f"seed {seed} ended as {trial.outcome.value}"
    return found


def _start(reproduction: Reproduction, parent: Need, workspace: Workspace) -> Start | None:
    """Return what a sweep begins from; None: its parent has no trial with a score."""
    trial = best_trial(reproduction, parent, workspace)
    if trial is None:
        return None
    store = workspace.checkpoints(reproduction.sweep(parent))
    adapter = best_adapter(store, trial)
    if adapter is None:
        raise StorageError(
            f"sweep '{reproduction.sweep(parent)}': the adapter of its best trial {trial.name} is "
            "gone; restore a copy"
        )
    return Start(trial.params, store.address(adapter))


def _stage(
    reproduction: Reproduction, needs: Mapping[Need, Start | None], workspace: Workspace
) -> Stage:
    suite = suite_of(reproduction.name, needs, reproduction.settings, reproduction.command)
    folder = workspace.path_of(suite.name)
    if SuiteDefinition.is_in(folder):
        clear_unbegun(workspace, suite.name)
    if not SuiteDefinition.is_in(folder):
        return Stage(suite, True, prepare_suite(suite, workspace), ())
    there = SuiteDefinition.read(folder)
    refuse_other(suite, there, workspace, "reproduction")
    new = prepare_growth(suite, workspace)
    ended = completed(workspace) if _is_closed(suite.name, workspace) else set()
    unfinished = [
        member.name
        for member in suite.members
        if member.name not in new
        and (
            member.sweep.name not in ended
            or _trials(member.sweep.name, workspace) < member.sweep.search.trials
        )
    ]
    return Stage(suite, False, new, unfinished)


def _is_closed(name: str, workspace: Workspace) -> bool:
    """Return whether a suite's run has an outcome: one that was killed after its last trial has
    none, and gets it when its sweeps, with nothing left to do, are resumed."""
    record = workspace.store().find_suite(name) if workspace.has_store() else None
    return record is not None and record.outcome is not None


def completed(workspace: Workspace) -> set[str]:
    """Return the names of all sweeps whose searches have come to their ends."""
    if not workspace.has_store():
        return set()
    sweeps = workspace.store().sweeps()
    return {sweep.name for sweep in sweeps if sweep.outcome is Outcome.COMPLETED}


def _trials(sweep: str, workspace: Workspace) -> int:
    return Definition.read(workspace.path_of(sweep), sweep).sweep().search.trials


def _run(
    stage: Stage,
    reproduction: Reproduction,
    workspace: Workspace,
    say: Callable[[str], None],
    found: Trained,
) -> None:
    """Run what is left of a stage, and note what failed."""
    suite = stage.suite
    if stage.is_new:
        found.take_in(run_suite(suite, stage.new, workspace))
        return
    note_command(workspace, suite.name, reproduction.command, is_judged=False)
    if stage.is_done:
        return
    if stage.new:
        grow_suite(suite, stage.new, workspace)
    begun = {
        member.name: resumable(
            member.sweep.name,
            workspace,
            {
                "search.trials": max(
                    member.sweep.search.trials, _trials(member.sweep.name, workspace)
                )
            },
            as_it_ran=True,
        )
        for member in suite.members
        if member.name in stage.new or member.name in stage.unfinished
    }
    definition = SuiteDefinition.read(workspace.path_of(suite.name))
    found.take_in(resume_suite(ResumableSuite(definition, begun), workspace, say))


def without(reproduction: Reproduction, left_out: Callable[[Need], bool]) -> Reproduction:
    """Return a reproduction without some sweeps, and without those that begin from them."""
    gone = {need for need in reproduction.needs if left_out(need)}
    gone |= {
        need
        for need in reproduction.needs
        if (parent := METHODS[need.method].parent) and Need(parent, need.task) in gone
    }
    kept = tuple(need for need in reproduction.needs if need not in gone)
    return replace(reproduction, needs=kept)
