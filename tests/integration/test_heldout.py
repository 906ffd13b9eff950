"""A sweep is finalized, killed while its winner is judged, finalized again, and reported."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from live import call, start, wait_for
from tiny_plm import save_tiny_plm

from orchestrator.state.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.long]

LABELS = ("rain", "<b>sun</b>")


def write_task(folder: Path) -> Path:
    for split, count in (("train", 60), ("validation", 30)):
        rows = [
            {"text": f"{n} <script>alert({n})</script> \x1b[31m", "is": LABELS[n % 2]}
            for n in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "name": "weather", "folder": ".", "text_columns": ["text"], "label_column": "is",
        "labels": LABELS,
    }  # fmt: skip
    file = folder / "weather.yaml"
    file.write_text(json.dumps(task))
    return file


def test_a_finalize_killed_while_it_judges_the_winner_goes_on_and_the_report_has_evaluates_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYATTN_CACHE", str(tmp_path / "cache"))
    plm, runs, log = save_tiny_plm(tmp_path / "plm"), tmp_path / "runs", tmp_path / "log"
    place = ("--runs", runs)
    settings = (
        f"task={write_task(tmp_path)}", f"plm={plm}", "name=s", "max_length=32", "epochs=1",
        "search.trials=1", "asha=null", "finalize.finalists=1", "finalize.seeds=1",
        "finalize.search.trials=1", "finalize.heads=2", "resources.concurrent=1",
    )  # fmt: skip
    ran = call("sweep", "run", "agreement", *settings, *place)
    assert ran.exit_code == 0, ran.output
    driver = start("finalize", "s", *place, log=log)
    wait_for(lambda: "evaluating the winner" in log.read_text(), seconds=600)
    driver.kill()
    driver.wait()

    def trials() -> Counter[tuple[str, str]]:
        store = Workspace(runs).store()
        found = store.trials_of(store.find_sweep("s"))
        return Counter((run.kind, run.trial.name) for run in found)

    known = trials()
    done = call("finalize", "s", *place)
    assert done.exit_code == 0, done.output
    assert trials() == known, "nothing is trained twice"
    (kept,) = runs.rglob("heldout.json")
    found = json.loads(kept.read_text())
    assert call("report", "s", *place).exit_code == 0
    page = (runs / "sweeps" / "s" / "report" / "report.html").read_text()

    store = Workspace(runs).store()
    winner = store.find_sweep("s").tags["winner"]
    assert winner in kept.parts
    adapter = store.download(winner, "adapter", tmp_path / "winner")
    told = call("evaluate", adapter, tmp_path / "validation.jsonl", "--html", tmp_path / "e.html",
                "--json", tmp_path / "e.json", *place)  # fmt: skip
    assert told.exit_code == 0, told.output
    wanted = json.loads((tmp_path / "e.json").read_text())
    assert {**found, "wrong": 0} == {**wanted, "wrong": 0}
    heldout = store.trial(winner).trial.heldout["accuracy"]
    assert found["metrics"][0]["value"] == pytest.approx(heldout, abs=1e-9)
    theirs = (tmp_path / "e.html").read_text()
    tables = re.findall(r"<table>.*?</table>", theirs, re.S)
    assert len(tables) >= 4
    assert [table for table in tables if table not in page] == []
    assert "<script" not in page
    assert "\x1b" not in page
