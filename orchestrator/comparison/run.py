"""Running a comparison: the searches of all methods as a suite, then their winners again.

The same call goes on where an earlier one ended, whatever ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.comparison.methods import Sized
from orchestrator.comparison.suite import Budget, comparison_suite
from orchestrator.selection.finalizer import repeat_suite
from orchestrator.spec.command import Command
from orchestrator.spec.config import Sweep
from orchestrator.spec.facts import Facts
from orchestrator.spec.outcome import Outcome
from orchestrator.spec.suite import Suite
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


@dataclass(frozen=True)
class Wanted:
    """A comparison as it was typed."""

    name: str
    task: str
    plm: str
    methods: Sequence[Sized]
    overrides: Mapping[str, Json]
    imports: Sequence[str]
    """Modules of the user's own."""
    command: Command
    """What was typed."""

    def suite(self, budget: Budget, names: Collection[str] | None = None) -> Suite:
        """Return the suite of methods at a budget; None for all.

        Raises:
            ConfigError, UsageError: as `comparison_suite`.
        """
        methods = [one for one in self.methods if names is None or one.name in names]
        suite = comparison_suite(self.name, self.task, self.plm, methods, self.overrides, budget)
        return replace(suite.with_imports(self.imports), command=self.command)

    @property
    def references(self) -> set[str]:
        """Names of the methods that stand beside the match."""
        return {one.name for one in self.methods if one.is_reference}


class Searching:
    """A comparison whose methods are searched further and further; Ray must be running."""

    def __init__(
        self, wanted: Wanted, trials: int, workspace: Workspace, say: Callable[[str], None]
    ) -> None:
        """Begin, or go on with what is on disk.

        Args:
            wanted: the comparison.
            trials: of one search.
            workspace: where its sweeps are kept.
            say: takes progress messages.
        """
        self._wanted, self._trials = wanted, trials
        self._workspace, self._say = workspace, say
        self._prepared: tuple[int, Prepared | None] | None = None

    def prepare(self, searches: int) -> None:
        """Check what `bring` would do with all methods, before Ray is started.

        Raises:
            As `prepare_comparison`.
        """
        names = [one.name for one in self._wanted.methods]
        self._prepared = searches, self._prepare(names, searches)

    @property
    def new_facts(self) -> Sequence[Facts]:
        """Facts of the methods that `prepare` found not to have begun."""
        prepared = None if self._prepared is None else self._prepared[1]
        return [] if prepared is None else [*prepared.new.values()]

    def _prepare(self, names: Collection[str], searches: int) -> Prepared | None:
        budget = Budget(searches, self._trials)
        there = budgets_of(self._wanted.name, self._workspace)
        todo = [name for name in names if there.get(name, budget).searches <= searches]
        if not todo:
            return None
        return prepare_comparison(self._wanted.suite(budget, todo), self._workspace)

    def bring(self, names: Collection[str], searches: int) -> dict[str, Sweep]:
        """Bring methods to a number of searches, all of whose winners have run again.

        A method that has more searches already stays as it is. What was interrupted goes on.

        Returns:
            The sweeps of all methods that have begun, by their names.

        Raises:
            As `prepare_comparison` and `search_and_repeat`.
        """
        known, self._prepared = self._prepared, None
        is_known = known is not None and known[0] == searches
        prepared = known[1] if known and is_known else self._prepare(names, searches)
        if prepared is not None:
            search_and_repeat(prepared, self._workspace, self._say, self._wanted.command)
        return self.sweeps()

    def sweeps(self) -> dict[str, Sweep]:
        """Return the sweeps of the wanted methods that have begun, as they are on disk."""
        folder = self._workspace.path_of(self._wanted.name)
        members = SuiteDefinition.read(folder).sweeps
        named = [one.name for one in self._wanted.methods if one.name in members]
        places = {name: self._workspace.path_of(members[name]) for name in named}
        return {
            name: Definition.read(place, members[name]).sweep()
            for name, place in places.items()
            if Definition.is_in(place)
        }

    def unnamed(self) -> list[str]:
        """Return the methods on disk that are not wanted now."""
        named = {one.name for one in self._wanted.methods}
        return sorted(budgets_of(self._wanted.name, self._workspace).keys() - named)


def budgets_of(name: str, workspace: Workspace) -> dict[str, Budget]:
    """Return the searches that the methods of a comparison on disk have, by their names."""
    folder = workspace.path_of(name)
    found: dict[str, Budget] = {}
    if not SuiteDefinition.is_in(folder):
        return found
    for member, sweep in SuiteDefinition.read(folder).sweeps.items():
        if Definition.is_in(workspace.path_of(sweep)):
            search = Definition.read(workspace.path_of(sweep), sweep).sweep().search
            if (each := search.trials_a_search) is not None:
                found[member] = Budget(search.trials // each, each)
    return found


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
            # Spaces of a comparison are its own: those of another version cannot be typed.
            can_type = not any(line.startswith("space.") for line in differs)
            raise UsageError(
                f"another {what} is called '{suite.name}', with other settings of {name} "
                f"({', '.join(differs)}); {'type what it was begun with, or ' if can_type else ''}"
                "choose a name with --name"
            )


def _word(value: Json) -> str:
    return "unset" if value is None else str(value)


def search_and_repeat(
    prepared: Prepared, workspace: Workspace, say: Callable[[str], None], command: Command
) -> None:
    """Run what is left of the searches and of their winners' repeats; Ray must be running.

    Args:
        prepared: from `prepare_comparison`.
        workspace: where its sweeps are kept.
        say: takes progress messages.
        command: what was typed.

    Raises:
        InterruptedSweepError: Ctrl-C.
        TinyAttnError: a method failed, so that there is nothing to compare it with.
    """
    suite, result = replace(prepared.suite, command=command), SuiteResult()
    if prepared.is_new:
        result = run_suite(suite, prepared.new, workspace)
    else:
        note_command(workspace, suite.name, command, is_judged=False)
    if not prepared.is_new and not prepared.is_searched:
        if prepared.new:
            grow_suite(suite, prepared.new, workspace)
        there = SuiteDefinition.read(workspace.path_of(suite.name))
        result = resume_suite(_resumable(suite, there, workspace), workspace, say)
    _refuse_failed(result.failed, command)
    if result.stopped:
        raise TinyAttnError(
            f"{', '.join(result.stopped)} was stopped; `{command.resume}` goes on with it"
        )
    sweeps = {member.name: member.sweep for member in suite.members}
    found = repeat_suite(suite.name, sweeps, workspace, command.after_search(), say)
    _refuse_failed({k: e for k, e in found.items() if isinstance(e, TinyAttnError)}, command)


def _refuse_failed(failed: Mapping[str, TinyAttnError], command: Command) -> None:
    if failed:
        lines = [f"{name}: {error}" for name, error in failed.items()]
        raise TinyAttnError("\n".join([*lines, f"once that is mended, `{command.resume}` goes on"]))
