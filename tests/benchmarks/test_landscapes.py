"""The recorder of landscapes: what a kill leaves of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.landscapes.measure import append, done, runs_of


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_a_run_whose_line_was_cut_off_is_recorded_again(tmp_path: Path, cut: int) -> None:
    """A kill in mid write leaves the beginning of a line; without its line break it is whole."""
    path = tmp_path / "plm-task.jsonl"
    first, second = (
        {"method": "tiny", "lr": 1e-3, "seed": seed, "curve": [{"step": 9}]} for seed in (0, 1)
    )
    append(path, first)
    append(path, second)
    path.write_bytes(path.read_bytes()[:-cut])
    kept = 2 if cut == 1 else 1
    assert len(done(path)) == kept
    if kept == 1:
        append(path, second)
    assert list(runs_of(path)) == [first, second]
