"""Running a comparison: the searches of all methods as a suite, then their winners on fresh seeds.

The same call goes on where an earlier one ended, whatever ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.comparison.suite import Budget
from orchestrator.selection.finalizer import repeat_suite
from orchestrator.spec.facts import Facts
from orchestrator.spec.outcome import Outcome
from orchestrator.spec.suite import Suite
from orchestrator.spec.trial import Trial
from orchestrator.spec.values import Json
from orchestrator.state.definition import Definition, differences
from orchestrator.state.suite_definition import SuiteDefinition, clear_unbegun, note_command
from orchestrator.state.workspace import Workspace
from orchestrator.suite import (
    ResumableSuite,
    SuiteResult,
    grow_suite,
    prepare_growth,
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
    is_new: bool
    new: Mapping[str, Facts]
    """Facts of the methods that have not begun, by their names."""
    is_searched: bool
    """Whether all searches have ended."""


def begun_budget(name: str, workspace: Workspace) -> Budget | None:
    """Return the searches that a comparison on disk has of each method; None: it has not begun."""
    folder = workspace.path_of(name)
    if not SuiteDefinition.is_in(folder):
        return None
    found = []
    for sweep in SuiteDefinition.read(folder).sweeps.values():
        if Definition.is_in(workspace.path_of(sweep)):
            search = Definition.read(workspace.path_of(sweep), sweep).sweep().search
            if search.trials_a_search is not None:
                each = search.trials_a_search
                found.append(Budget(search.trials // each, each))
    return max(found, key=lambda one: one.searches, default=None)


def prepare_comparison(suite: Suite, workspace: Workspace) -> Prepared:
    """Check a comparison before it starts or goes on, perhaps with more trials or other methods.

    Methods that it has and that are not named stay as they are.

    Raises:
        UsageError: what does not fit; or one of this name was begun with other settings.
        StorageError: as `prepare_suite`.
    """
    folder = workspace.path_of(suite.name)
    if SuiteDefinition.is_in(folder):
        clear_unbegun(workspace, suite.name)
    if not SuiteDefinition.is_in(folder):
        return Prepared(suite, True, prepare_suite(suite, workspace), False)
    there = SuiteDefinition.read(folder)
    refuse_other(suite, there, workspace, "comparison")
    new = prepare_growth(suite, workspace)
    begun = [member.sweep for member in suite.members if member.name not in new]
    if begun:
        _resumable(suite, there, workspace, new)
    store = workspace.store()
    ended = {sweep.name for sweep in store.sweeps() if sweep.outcome is Outcome.COMPLETED}
    record = store.find_suite(suite.name)
    # One that was interrupted after its last trial has yet to be closed as a suite.
    is_closed = record is not None and record.outcome is Outcome.COMPLETED
    before = {
        Definition.read(workspace.path_of(sweep.name), sweep.name).sweep().search.trials
        for sweep in begun
    }
    all_ended = is_closed and {sweep.name for sweep in suite.sweeps} <= ended
    return Prepared(suite, False, new, all_ended and before == {suite.sweeps[0].search.trials})


def _resumable(
    suite: Suite, there: SuiteDefinition, workspace: Workspace, new: Collection[str] = ()
) -> ResumableSuite:
    """Return the searches of the methods that are named, but for `new` ones, as can be resumed.

    A driver may have written new ones into the suite's file and been killed before more.
    """
    named = {member.name for member in suite.members} - {*new}
    return resumable_suite(
        suite.name,
        workspace,
        {"search.trials": suite.sweeps[0].search.trials},
        as_it_ran=True,
        without=[name for name in there.sweeps if name not in named],
    )


def refuse_other(suite: Suite, there: SuiteDefinition, workspace: Workspace, what: str) -> None:
    """Raise UsageError if a suite of this name was begun with other settings.

    Args:
        suite: as it is wanted.
        there: as it is on disk.
        workspace: where it is kept.
        what: what such a suite is called, as in `comparison`.
    """
    wanted = {member.name: member.sweep for member in suite.members}
    if any(there.sweeps.get(name, sweep.name) != sweep.name for name, sweep in wanted.items()):
        raise UsageError(f"a suite is called '{suite.name}'; choose a name with --name")
    for name, sweep in wanted.items():
        if not Definition.is_in(workspace.path_of(sweep.name)):
            continue
        begun = Definition.read(workspace.path_of(sweep.name), sweep.name).sweep()
        # Versions of carving and tokens are those that it was begun with; the adapter that it
        # starts from may be elsewhere by now.
        left_out: Any = {"search": {"trials"}, "finalize": True, "train": {"start": {"adapter"}}}
        now, before = (one.model_dump(mode="json", exclude=left_out) for one in (sweep, begun))
        differs = [
            f"{key.removeprefix('train.')}: {_word(then)} then, {_word(since)} now"
            for key, then, since in differences(before, now)
        ]
        if differs:
            raise UsageError(
                f"another {what} is called '{suite.name}', with other settings of {name} "
                f"({', '.join(differs)}); type what it was begun with, or choose a name with --name"
            )


def _word(value: Json) -> str:
    return "unset" if value is None else str(value)


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
        For each method the trials that repeat the winners of its searches.

    Raises:
        InterruptedSweepError: Ctrl-C.
        TinyAttnError: a method failed, so that there is nothing to compare it with.
    """
    suite, result = replace(prepared.suite, go_on=go_on), SuiteResult()
    if prepared.is_new:
        result = run_suite(suite, prepared.new, workspace)
    else:
        note_command(workspace, suite.name, go_on, is_judged=False)
    if not prepared.is_new and not prepared.is_searched:
        if prepared.new:
            grow_suite(suite, prepared.new, workspace)
        there = SuiteDefinition.read(workspace.path_of(suite.name))
        result = resume_suite(_resumable(suite, there, workspace), workspace, say)
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
