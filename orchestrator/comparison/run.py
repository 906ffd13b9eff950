"""Running a comparison: the searches of all methods as a suite, then the winners on fresh seeds.

The same call goes on where an earlier one ended, whatever ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.selection.finalizer import repeat_suite
from orchestrator.spec.facts import Facts
from orchestrator.spec.outcome import Outcome
from orchestrator.spec.suite import Suite
from orchestrator.spec.trial import Trial
from orchestrator.state.definition import Definition
from orchestrator.state.suite_definition import SuiteDefinition
from orchestrator.state.workspace import Workspace
from orchestrator.suite import (
    ResumableSuite,
    SuiteResult,
    prepare_suite,
    resumable_suite,
    resume_suite,
    run_suite,
)
from tinyattn.errors import TinyAttnError, UsageError


@dataclass(frozen=True)
class Prepared:
    """A comparison that is checked; nothing of it has started by this."""

    suite: Suite
    facts: Mapping[str, Facts] | None
    """Of a new one; None: it was begun before."""
    resumed: ResumableSuite | None
    """Of one whose searches have not ended; None: it is new, or they have."""


def prepare_comparison(suite: Suite, workspace: Workspace) -> Prepared:
    """Check a comparison before it starts or goes on.

    Raises:
        UsageError: what does not fit; or one of this name was begun with other settings.
        StorageError: as `prepare_suite`.
    """
    folder = workspace.path_of(suite.name)
    if not SuiteDefinition.is_in(folder) or not SuiteDefinition.read(folder).is_begun(workspace):
        return Prepared(suite, prepare_suite(suite, workspace), None)
    _refuse_other(suite, SuiteDefinition.read(folder), workspace)
    trials = suite.sweeps[0].search.trials
    resumed = resumable_suite(suite.name, workspace, {"search.trials": trials}, as_it_ran=True)
    store = workspace.store()
    ended = {one.name for one in store.sweeps() if one.outcome is Outcome.COMPLETED}
    before = [
        Definition.read(workspace.path_of(s.name), s.name).sweep().search.trials
        for s in suite.sweeps
    ]
    if {sweep.name for sweep in suite.sweeps} <= ended and set(before) == {trials}:
        return Prepared(suite, None, None)
    return Prepared(suite, None, resumed)


def _refuse_other(suite: Suite, there: SuiteDefinition, workspace: Workspace) -> None:
    """Raise UsageError if a comparison of this name was begun with other settings."""
    wanted = {member.name: member.sweep for member in suite.members}
    other = "another comparison is called"
    if there.sweeps != {name: sweep.name for name, sweep in wanted.items()}:
        raise UsageError(
            f"{other} '{suite.name}', of {', '.join(there.sweeps)}; choose a name with --name"
        )
    for name, sweep in wanted.items():
        begun = Definition.read(workspace.path_of(sweep.name), sweep.name).sweep()
        # Versions of carving and tokens are those that it was begun with.
        now, before = (
            one.model_dump(mode="json", exclude={"search": {"trials"}, "finalize": True})
            for one in (sweep, begun)
        )
        differs = [key for key in now if now[key] != before[key]]
        if differs:
            raise UsageError(
                f"{other} '{suite.name}', with another {differs[0]} of {name}; type what it was "
                "begun with, or choose a name with --name"
            )


def search_and_repeat(
    prepared: Prepared, workspace: Workspace, say: Callable[[str], None], go_on: str
) -> dict[str, list[Trial]]:
    """Run what is left of a comparison; Ray must be running.

    Args:
        prepared: from `prepare_comparison`.
        workspace: where its sweeps are kept.
        say: takes progress messages.
        go_on: the command that goes on where it is interrupted.

    Returns:
        For each method the trials of its best configuration on fresh seeds.

    Raises:
        InterruptedSweepError: Ctrl-C.
        TinyAttnError: a method failed, so that there is nothing to compare it with.
    """
    suite, result = prepared.suite, SuiteResult()
    if prepared.facts is not None:
        result = run_suite(suite, prepared.facts, workspace)
    elif prepared.resumed is not None:
        result = resume_suite(prepared.resumed, workspace, say)
    _refuse_failed(result.failed, go_on)
    if result.stopped:
        raise TinyAttnError(
            f"{', '.join(result.stopped)} was stopped by itself; `tinyattn {go_on}` goes on with it"
        )
    sweeps = {member.name: member.sweep for member in suite.members}
    found = repeat_suite(suite.name, sweeps, workspace, go_on, say)
    _refuse_failed({k: e for k, e in found.items() if isinstance(e, TinyAttnError)}, go_on)
    return {k: trials for k, trials in found.items() if not isinstance(trials, TinyAttnError)}


def _refuse_failed(failed: Mapping[str, TinyAttnError], go_on: str) -> None:
    if failed:
        lines = [f"{name}: {error}" for name, error in failed.items()]
        raise TinyAttnError("\n".join([*lines, f"once that is mended, `tinyattn {go_on}` goes on"]))
