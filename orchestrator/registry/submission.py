"""Submission: adapters' answers to GLUE's test rows, as the GLUE server takes them.

The adapters are the champions of the tasks, or trials. What is missing or wrong is found before
anything is predicted: adapters, test rows, their number and order, and PLMs. AX is answered by the
adapter of MNLI, and WNLI by one class, as in the paper, unless its champion is asked for.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from orchestrator.registry.champions import Champion, champions, model_name, without_champion
from orchestrator.registry.glue_server import FILES, GlueFile, table_of
from orchestrator.reporting.view import clock
from orchestrator.state.workspace import Workspace
from orchestrator.tracking.reader import TrackingReader
from orchestrator.tracking.records import TrialRun
from tinyattn.adapters.checkpoint import read_card
from tinyattn.data.sources import Source, find_source, find_unlabelled
from tinyattn.data.splits import UnlabelledRows, majority_class, read_unlabelled
from tinyattn.data.tokens import Split
from tinyattn.errors import AbsentDataError, AdapterError, TaskError, UsageError, did_you_mean
from tinyattn.plms.loading import find_plm
from tinyattn.predict import Predictor, require_finite
from tinyattn.training.model_cache import ModelCache

ROWS_AT_ONCE = 1_000
"""Rows that are predicted between two messages."""
SECONDS_BETWEEN = 10.0
"""Least time between two of them."""
_MAJORITY = "wnli"
"""Task that one class answers, unless its champion is asked for."""
_PAPERS_CLASS = 0
"""`not_entailment`, the class of most rows of WNLI, by which the paper's submission answers it."""


@dataclass(frozen=True)
class Answerer:
    """An adapter that answers the test rows of its task: a champion, or a trial."""

    task: str
    plm: str
    run_id: str
    """Its MLflow run."""
    trial: str
    """Name of its trial, as in `first/search_00004`."""
    protocol: str
    score: float | None
    """Its best score on the selection rows, a share; None: it has none."""
    heldout: Mapping[str, float]
    """Its scores on the held-out rows, shares by metric; empty: not measured."""
    model: str = ""
    """Its registered model; empty: it is none."""
    version: int | None = None

    @property
    def name(self) -> str:
        """What it is called: `tinyattn-rte-minilm version 2`, or else by its trial."""
        return f"{self.model} version {self.version}" if self.model else self.trial

    @classmethod
    def of_champion(cls, one: Champion) -> Self:
        """Return a champion as one that answers."""
        protocol = one.tags.get("protocol", "")
        return cls(
            one.task, one.plm, one.run_id, one.trial, protocol, one.score, one.heldout, one.model,
            one.version,
        )  # fmt: skip

    @classmethod
    def of_trial(cls, run: TrialRun) -> Self:
        """Return a trial as one that answers."""
        best = run.trial
        return cls(
            run.task, run.plm, run.run_id, run.name, run.protocol, best.best_score, best.heldout
        )


@dataclass(frozen=True)
class Answer:
    """One file of a submission, and what it comes from."""

    file: GlueFile
    table: str
    """Its content."""
    rows: int
    answerer: Answerer | None
    """Whose answers these are; None: all are one class."""
    place: str
    """Where the test rows are; of one class, where the labelled rows are that chose it."""
    truncated: int = 0
    """Rows that were cut since they are longer than the adapter reads."""
    digest: str | None = None
    """SHA-256 of the file of the test rows; of one class of those of the labelled rows that chose
    it, and None if none are here."""


@dataclass(frozen=True)
class Submission:
    """Answers to the test rows of GLUE's tasks, in the order of `FILES`."""

    answers: tuple[Answer, ...]
    left_out: Mapping[str, str]
    """File -> why it is not there."""


@dataclass(frozen=True)
class Plan:
    """Which adapters will answer which test rows; nothing is answered by it."""

    answerers: Mapping[str, Answerer]
    """Task -> the adapter that answers its rows."""
    sources: Mapping[GlueFile, Source]
    """Where the test rows of the files are that will be answered by adapters."""
    left_out: Mapping[str, str]
    """File -> why it will not be there."""
    of_one_class: Mapping[GlueFile, Source | None]
    """Files that one class answers -> where the labelled rows are that choose it; None: no rows are
    here."""
    absent: str = ""
    """What was said of the first test rows that are not here; empty: all are."""

    @property
    def origins(self) -> dict[str, tuple[str | None, str | None]]:
        """What each file comes from: its name -> MLflow run of its adapter, SHA-256 of its rows."""
        found: dict[str, tuple[str | None, str | None]] = {
            file.name: (self.answerers[file.answered_by].run_id, source.digests[file.split])
            for file, source in self.sources.items()
        }
        return found | {f.name: (None, _digest(own)) for f, own in self.of_one_class.items()}


@dataclass(frozen=True)
class _Part:
    """The rows of one file, and the adapter that is to answer them."""

    file: GlueFile
    answerer: Answerer
    rows: UnlabelledRows
    digest: str
    """SHA-256 of the rows' file."""


def make_submission(
    workspace: Workspace,
    plm: str | None = None,
    *,
    partial: bool = False,
    wnli_by_model: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Submission:
    """Answer GLUE's test rows by the champions of its tasks.

    Args:
        workspace: where champions and data are.
        plm: name of the PLM; None: each task's only one with a champion.
        partial: leave out files without champion or test rows, and take test rows of any number.
        wnli_by_model: whether WNLI's champion answers WNLI, instead of the class of most rows.
        say: called with messages: what is left out, whose rows are being answered.

    Raises:
        UsageError: a champion or test rows are missing, or the rows are not those of the server;
            one message for all files. Or a task has champions on several PLMs.
        TaskError: a file of test rows is damaged or does not fit its task.
        AdapterError: a champion's adapter is damaged, or its labels are not those of the task.
    """
    store = workspace.store()
    files = [file for file in FILES if wnli_by_model or file.answered_by != _MAJORITY]
    chosen = _champions(store, plm, {file.answered_by for file in files})
    lacks = "has no champion" + ("" if plm is None else f" on {plm}")
    answerers = {task: Answerer.of_champion(one) for task, one in chosen.items()}
    plan = _plan(workspace, files, answerers, partial, lacks)
    if (plan.left_out and not partial) or not plan.sources:
        tasks = dict.fromkeys(file.answered_by for file in files if file.answered_by not in chosen)
        hints = [said for task in tasks for said in without_champion(store, task)]
        raise UsageError(_lacking_words(plan, partial, hints))
    return answered(workspace, plan, partial, say)


def check_test_rows(workspace: Workspace, tasks: Collection[str]) -> list[str]:
    """Read the test rows that adapters of tasks will answer, before these are trained.

    Args:
        workspace: where the data are.
        tasks: names of tasks; of others than GLUE's nothing is answered.

    Returns:
        What is to be said of them: which are not here, or not as many as the server has.

    Raises:
        TaskError: a file is damaged or does not fit its task.
    """
    said = []
    for file in FILES:
        if file.answered_by not in tasks:
            continue
        try:
            source = find_unlabelled(file.task, file.split, workspace.data_dir)
        except AbsentDataError:
            said.append(f"{file.name}: no test rows ({file.source})")
        else:
            rows = read_unlabelled(file.task, file.split, source)
            said += filter(None, [_other_number(file, rows)])
    return said


def plan_by_trials(workspace: Workspace, trials: Mapping[str, TrialRun]) -> Plan:
    """Return a plan by which trials answer GLUE's test rows, WNLI by the class of most rows.

    Args:
        workspace: where the data are.
        trials: {task: the trial that answers it}, whose adapter is with its MLflow run.
    """
    files = [file for file in FILES if file.answered_by != _MAJORITY]
    chosen = {task: Answerer.of_trial(run) for task, run in trials.items()}
    return _plan(workspace, files, chosen, True, "has no sweep that completed")


def answered(
    workspace: Workspace, plan: Plan, partial: bool, say: Callable[[str], None]
) -> Submission:
    """Answer test rows as planned.

    Args:
        workspace: where adapters and data are.
        plan: what answers what.
        partial: take test rows of any number.
        say: called with messages: what is left out, whose rows are being answered.

    Raises:
        TaskError: a file of test rows is damaged or does not fit its task, or the rows are not
            those of the server.
        AdapterError: an adapter is damaged, or its labels are not those of the task.
    """
    parts = [
        _Part(
            file,
            plan.answerers[file.answered_by],
            read_unlabelled(file.task, file.split, source),
            source.digests[file.split],
        )
        for file, source in plan.sources.items()
    ]
    for name, why in plan.left_out.items():
        say(f"note: {name} is left out: {why}")
    _compare_numbers(parts, partial, say)
    found = {f.name: _of_one_class(f, source, say) for f, source in plan.of_one_class.items()}
    with tempfile.TemporaryDirectory() as scratch:
        folders = _adapters(workspace.store(), parts, Path(scratch))
        for answer in _answers(parts, folders, ModelCache(workspace.data_dir), say):
            found[answer.file.name] = answer
    return Submission(tuple(found[f.name] for f in FILES if f.name in found), plan.left_out)


def _plan(
    workspace: Workspace,
    files: Sequence[GlueFile],
    answerers: Mapping[str, Answerer],
    partial: bool,
    lacks: str,
) -> Plan:
    """Return which adapters answer which rows.

    Args:
        workspace: where the data are.
        files: those that an adapter is to answer; others are answered by one class.
        answerers: {task: the adapter that answers it}.
        partial: whether the rows of a file without adapter need not be there.
        lacks: what is said of a task without an adapter.
    """
    wanted = [file for file in files if not partial or file.answered_by in answerers]
    sources, absent = _sources(workspace.data_dir, wanted)
    left_out = {}
    for file in files:
        reasons = [] if file.answered_by in answerers else [f"task {file.answered_by} {lacks}"]
        reasons += [f"no test rows ({file.source})"] if file in absent else []
        if reasons:
            left_out[file.name] = ", ".join(reasons)
    others = {file: _labelled(file, workspace) for file in FILES if file not in files}
    return Plan(answerers, sources, left_out, others, next(iter(absent.values()), ""))


def _champions(
    store: TrackingReader, plm: str | None, tasks: Collection[str]
) -> dict[str, Champion]:
    """Return {task: its champion} for tasks that have one.

    Raises:
        UsageError: a task has champions on several PLMs and `plm` is None, or none has one on it.
    """
    known = [champion for champion in champions(store) if champion.task in tasks]
    found: dict[str, list[Champion]] = defaultdict(list)
    for one in known:
        if plm is None or one.model == model_name(one.task, plm):
            found[one.task].append(one)
    plms = sorted({one.plm for one in known})
    if plm is not None and known and not found:
        raise UsageError(
            f"no task of GLUE has a champion on '{plm}'{did_you_mean(plm, plms)}; there are "
            f"champions on {', '.join(plms)}"
        )
    several = [f"{t} ({', '.join(o.plm for o in own)})" for t, own in found.items() if own[1:]]
    if several:
        raise UsageError(
            f"tasks with champions on several PLMs: {', '.join(several)}; add --plm NAME"
        )
    return {task: own[0] for task, own in found.items()}


def _sources(
    data_dir: Path | None, files: Sequence[GlueFile]
) -> tuple[dict[GlueFile, Source], dict[GlueFile, str]]:
    """Return where the test rows of files are, and what is said of each file without them."""
    found, absent = {}, {}
    for file in files:
        try:
            found[file] = find_unlabelled(file.task, file.split, data_dir)
        except AbsentDataError as error:
            absent[file] = str(error)
    return found, absent


def _lacking_words(plan: Plan, partial: bool, more: Sequence[str]) -> str:
    hint = "nothing is left to submit" if partial else "--partial leaves these out"
    return "\n".join(
        [
            f"of the {len(FILES)} files of a submission {len(plan.left_out)} cannot be made:",
            *(f"  {name}: {why}" for name, why in plan.left_out.items()),
            f"`tinyattn promote NAME` makes a champion; {hint}",
            *more,
            *filter(None, [plan.absent]),
        ]
    )


def _compare_numbers(parts: Sequence[_Part], partial: bool, say: Callable[[str], None]) -> None:
    """Compare the numbers of rows with those of the server; say how they differ, if `partial`.

    Raises:
        TaskError: they differ, without `partial`.
    """
    wrong = [said for part in parts if (said := _other_number(part.file, part.rows))]
    if wrong and not partial:
        lines = "\n".join(f"  {line}" for line in wrong)
        raise TaskError(
            f"other test rows than the GLUE server's:\n{lines}\nGive GLUE's own test rows, or "
            "--partial for a zip that the server does not take"
        )
    for line in wrong:
        say(f"note: {line}")


def _other_number(file: GlueFile, rows: UnlabelledRows) -> str:
    """Return how the numbers of rows differ from those of the server; empty: they do not."""
    index, wanted = rows.index, file.rows
    if len(index) != wanted:
        came = f"{len(index):,} rows"
    elif index[-1] != wanted - 1:
        came = f"rows numbered from {index[0]:,} to {index[-1]:,} in their column idx"
    else:
        return ""
    return (
        f"{file.name}: {came} came from {rows.place}, the GLUE server has {wanted:,} rows, 0 to "
        f"{wanted - 1:,}"
    )


def _labelled(file: GlueFile, workspace: Workspace) -> Source | None:
    """Return where the labelled rows of a file's task are; None: not here."""
    try:
        return find_source(file.task, workspace.data_dir)
    except AbsentDataError:
        return None


def _digest(source: Source | None) -> str | None:
    """Return the SHA-256 of those of all splits."""
    if source is None:
        return None
    return hashlib.sha256("".join(sorted(source.digests.values())).encode()).hexdigest()


def _of_one_class(file: GlueFile, source: Source | None, say: Callable[[str], None]) -> Answer:
    """Answer a file by the class of most labelled rows; if they are not here, by the paper's."""
    if source is None:
        label, place = _PAPERS_CLASS, "the paper's protocol, as no labelled rows are here"
    else:
        label, place = majority_class(file.task, source), ", ".join(source.places.values())
    say(f"{file.name}: {file.rows:,} rows, all {label}: the majority class by {place}")
    table = table_of(np.arange(file.rows), [str(label)] * file.rows)
    return Answer(file, table, file.rows, None, place, digest=_digest(source))


def _adapters(store: TrackingReader, parts: Sequence[_Part], scratch: Path) -> dict[str, Path]:
    """Copy each adapter; return {task: its folder}.

    Raises:
        AdapterError: one is damaged, or its labels are not those of its task.
        PlmError: a PLM's folder is not there.
    """
    folders: dict[str, Path] = {}
    for part in parts:
        task = part.answerer.task
        if task not in folders:
            folders[task] = store.download(part.answerer.run_id, "adapter", scratch / task)
        card = read_card(folders[task])
        theirs = card.task.labels if card.task is not None else ()
        if theirs != part.file.task.labels:
            raise AdapterError(
                f"{part.answerer.name} has the labels "
                f"{_listed(theirs)}; {part.file.name} takes {_listed(part.file.task.labels)}, in "
                f"this order: needed is an adapter that was trained on {task}"
            )
        find_plm(card.plm.name)
    return folders


def _listed(labels: Sequence[str] | None) -> str:
    return "none but a score" if labels is None else ", ".join(labels)


def _answers(
    parts: Sequence[_Part],
    folders: Mapping[str, Path],
    model_cache: ModelCache,
    say: Callable[[str], None],
) -> Iterator[Answer]:
    """Predict, one adapter after the other, and yield the files."""
    for task, folder in folders.items():
        predictor = Predictor(folder, model_cache)
        try:
            for part in parts:
                if part.answerer.task == task:
                    yield _answer(part, predictor, say)
        finally:
            predictor.close()


def _answer(part: _Part, predictor: Predictor, say: Callable[[str], None]) -> Answer:
    file, answerer, rows = part.file, part.answerer, part.rows
    split = predictor.split(rows.texts)
    cut = f"; {split.truncated:,} are longer than it reads and were cut" if split.truncated else ""
    say(f"{file.name}: {len(split):,} rows by {answerer.name}{cut}")
    outputs = np.concatenate([*_outputs(split, predictor, file.name, say)])
    require_finite(outputs)
    table = table_of(rows.index, file.labels_of(outputs))
    return Answer(file, table, len(split), answerer, rows.place, split.truncated, part.digest)


def _outputs(
    split: Split, predictor: Predictor, name: str, say: Callable[[str], None]
) -> Iterator[np.ndarray]:
    """Yield the outputs of rows, part by part; say how far it is and how long the rest takes."""
    begin = said = time.monotonic()
    for start in range(0, len(split), ROWS_AT_ONCE):
        end = min(start + ROWS_AT_ONCE, len(split))
        yield predictor.outputs(replace(split, rows=split.rows.select(range(start, end))))
        now = time.monotonic()
        if end < len(split) and now - said >= SECONDS_BETWEEN:
            said, speed = now, end / (now - begin)
            left = clock((len(split) - end) / speed)
            say(f"{name}: {end:,} of {len(split):,} rows, {speed:,.0f} rows/s, about {left} left")
