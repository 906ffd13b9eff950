"""Submission: the champions' answers to GLUE's test rows, as the GLUE server takes them.

What is missing or wrong is found before anything is predicted: champions, test rows, their number
and order, adapters and PLMs. AX is answered by the champion of MNLI, and WNLI by one class, as in
the paper, unless its champion is asked for.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.registry.champions import Champion, champions, model_name, without_champion
from orchestrator.registry.glue_server import FILES, GlueFile, table_of
from orchestrator.state.workspace import Workspace
from orchestrator.tracking.reader import TrackingReader
from tinyattn.adapters.checkpoint import read_card
from tinyattn.data.sources import Source, find_source, find_unlabelled
from tinyattn.data.splits import UnlabelledRows, majority_class, read_unlabelled
from tinyattn.errors import AbsentDataError, AdapterError, TaskError, UsageError, did_you_mean
from tinyattn.plms.loading import find_plm
from tinyattn.predict import Predictor, require_finite
from tinyattn.training.model_cache import ModelCache

_MAJORITY = "wnli"
"""Task that one class answers, unless its champion is asked for."""
_PAPERS_CLASS = 0
"""`not_entailment`, the class of most rows of WNLI, by which the paper's submission answers it."""


@dataclass(frozen=True)
class Answer:
    """One file of a submission, and what it comes from."""

    file: GlueFile
    table: str
    """Its content."""
    rows: int
    champion: Champion | None
    """Whose answers these are; None: all are one class."""
    place: str
    """Where the test rows are; of one class, where the labelled rows are that chose it."""
    truncated: int = 0
    """Rows that were cut since they are longer than the adapter reads."""


@dataclass(frozen=True)
class Submission:
    """Answers to the test rows of GLUE's tasks, in the order of `FILES`."""

    answers: tuple[Answer, ...]
    left_out: Mapping[str, str]
    """File -> why it is not there."""


@dataclass(frozen=True)
class _Part:
    """The rows of one file, and the champion that is to answer them."""

    file: GlueFile
    champion: Champion
    rows: UnlabelledRows


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
    unanswered = [file for file in files if file.answered_by not in chosen]
    wanted = [file for file in files if not (partial and file in unanswered)]
    sources, absent = _sources(workspace.data_dir, wanted)
    left_out = _reasons(files, unanswered, absent, plm)
    if (left_out and not partial) or not sources:
        tasks = dict.fromkeys(file.answered_by for file in unanswered)
        hints = [said for task in tasks for said in without_champion(store, task)]
        raise UsageError(_lacking_words(left_out, partial, [*hints, *list(absent.values())[:1]]))
    parts = [
        _Part(file, chosen[file.answered_by], read_unlabelled(file.task, file.split, source))
        for file, source in sources.items()
    ]
    for name, why in left_out.items():
        say(f"note: {name} is left out: {why}")
    _compare_numbers(parts, partial, say)
    others = [file for file in FILES if file not in files]
    found = {file.name: _of_one_class(workspace, file, say) for file in others}
    with tempfile.TemporaryDirectory() as scratch:
        folders = _adapters(store, parts, Path(scratch))
        for answer in _answers(parts, folders, ModelCache(workspace.data_dir), say):
            found[answer.file.name] = answer
    return Submission(tuple(found[f.name] for f in FILES if f.name in found), left_out)


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


def _reasons(
    files: Sequence[GlueFile],
    unanswered: Collection[GlueFile],
    absent: Collection[GlueFile],
    plm: str | None,
) -> dict[str, str]:
    """Return {file: why it cannot be made}: no champion, no test rows, or both."""
    found = {}
    where = "" if plm is None else f" on {plm}"
    for file in files:
        reasons = [f"task {file.answered_by} has no champion{where}"] if file in unanswered else []
        reasons += [f"no test rows ({file.source})"] if file in absent else []
        if reasons:
            found[file.name] = ", ".join(reasons)
    return found


def _lacking_words(left_out: Mapping[str, str], partial: bool, more: Sequence[str]) -> str:
    hint = "nothing is left to submit" if partial else "--partial leaves these out"
    return "\n".join(
        [
            f"of the {len(FILES)} files of a submission {len(left_out)} cannot be made:",
            *(f"  {name}: {why}" for name, why in left_out.items()),
            f"`tinyattn promote NAME` makes a champion; {hint}",
            *more,
        ]
    )


def _compare_numbers(parts: Sequence[_Part], partial: bool, say: Callable[[str], None]) -> None:
    """Compare the numbers of rows with those of the server; say how they differ, if `partial`.

    Raises:
        TaskError: they differ, without `partial`.
    """
    wrong = []
    for part in parts:
        index, wanted = part.rows.index, part.file.rows
        if len(index) != wanted:
            came = f"{len(index):,} rows"
        elif index[-1] != wanted - 1:
            came = f"rows numbered from {index[0]:,} to {index[-1]:,} in their column idx"
        else:
            continue
        wrong.append(
            f"{part.file.name}: {came} came from {part.rows.place}, the GLUE server has {wanted:,} "
            f"rows, 0 to {wanted - 1:,}"
        )
    if wrong and not partial:
        lines = "\n".join(f"  {line}" for line in wrong)
        raise TaskError(
            f"other test rows than the GLUE server's:\n{lines}\nGive GLUE's own test rows, or "
            "--partial for a zip that the server does not take"
        )
    for line in wrong:
        say(f"note: {line}")


def _of_one_class(workspace: Workspace, file: GlueFile, say: Callable[[str], None]) -> Answer:
    """Answer a file by the class of most labelled rows; if they are not here, by the paper's."""
    try:
        source = find_source(file.task, workspace.data_dir)
    except AbsentDataError:
        label, place = _PAPERS_CLASS, "the paper's protocol, as no labelled rows are here"
    else:
        label, place = majority_class(file.task, source), ", ".join(source.places.values())
    say(f"{file.name}: {file.rows:,} rows, all {label}: the majority class by {place}")
    return Answer(
        file, table_of(np.arange(file.rows), [str(label)] * file.rows), file.rows, None, place
    )


def _adapters(store: TrackingReader, parts: Sequence[_Part], scratch: Path) -> dict[str, Path]:
    """Copy the adapter of each champion; return {task: its folder}.

    Raises:
        AdapterError: one is damaged, or its labels are not those of its task.
        PlmError: a PLM's folder is not there.
    """
    folders: dict[str, Path] = {}
    for part in parts:
        task = part.champion.task
        if task not in folders:
            folders[task] = store.download(part.champion.run_id, "adapter", scratch / task)
        card = read_card(folders[task])
        theirs = card.task.labels if card.task is not None else ()
        if theirs != part.file.task.labels:
            raise AdapterError(
                f"{part.champion.model} version {part.champion.version} has the labels "
                f"{_listed(theirs)}; {part.file.name} takes {_listed(part.file.task.labels)}, in "
                f"this order: promote an adapter that was trained on {task}"
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
    """Predict, one champion after the other, and yield the files."""
    for task, folder in folders.items():
        predictor = Predictor(folder, model_cache)
        try:
            for part in parts:
                if part.champion.task == task:
                    yield _answer(part, predictor, say)
        finally:
            predictor.close()


def _answer(part: _Part, predictor: Predictor, say: Callable[[str], None]) -> Answer:
    file, champion, rows = part.file, part.champion, part.rows
    split = predictor.split(rows.texts)
    cut = f"; {split.truncated:,} are longer than it reads and were cut" if split.truncated else ""
    say(f"{file.name}: {len(split):,} rows by {champion.model} version {champion.version}{cut}")
    outputs = predictor.outputs(split)
    require_finite(outputs)
    table = table_of(rows.index, file.labels_of(outputs))
    return Answer(file, table, len(split), champion, rows.place, split.truncated)
