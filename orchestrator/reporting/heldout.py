"""Sections of a report with the evaluation of the winner on held-out rows."""

from __future__ import annotations

import shlex
from html import escape

from orchestrator.judging.page import sections
from orchestrator.judging.table import sentences, title
from orchestrator.tracking.reader import TrackingReader
from orchestrator.tracking.records import SweepRecord
from tinyattn.errors import StorageError
from tinyattn.files.outside import UnfitError
from tinyattn.judging.evaluation import Evaluation

_HEAD = "The winner on held-out rows"


def heldout_sections(store: TrackingReader, sweep: SweepRecord) -> list[str]:
    """Return the sections, with the tables of `tinyattn evaluate`; none before it is finalized."""
    winner = sweep.tags.get("winner")
    if winner is None:
        return []
    try:
        kept = store.heldout_of(winner)
        found = None if kept is None else Evaluation.from_json(kept)
    except (StorageError, UnfitError) as error:
        return [_without(f"cannot be read ({error})", store, winner)]
    if found is None:
        held = not sweep.protocol.startswith("paper")
        why = "was not kept" if held else "is not known: the protocol paper holds no rows out"
        return [_without(why, store, winner)]
    return sections(found, _HEAD, [title(found), *sentences(found)])


def _without(why: str, store: TrackingReader, winner: str) -> str:
    """Return the section where there are no tables: why, and how one gets them."""
    try:
        folder = store.folder_of(winner, "adapter")
    except StorageError:
        folder = None
    named = "FOLDER" if folder is None else shlex.quote(str(folder))
    command = f"<code>{escape(f'tinyattn evaluate {named} ROWS')}</code>"
    return (
        f"<section><h2>{_HEAD}</h2><p>The winner's evaluation {escape(why)}. {command} evaluates "
        "it on a file of labelled rows.</p></section>"
    )
