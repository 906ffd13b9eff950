"""`tinyattn compare` through the real command line."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from glue_files import write_glue
from live import call, start, wait_for
from sweep_truth import suite_untruths, untruths
from tiny_plm import save_tiny_plm

from orchestrator.state.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.long]

METHODS = ("tiny", "lora", "classifier")
FEW = (
    "max_length=32", "max_train_rows=96", "max_select_rows=48", "epochs=2",
)  # fmt: skip


def logs(runs: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in runs.glob("sweeps/*/*.jsonl")}


def test_a_comparison_that_was_killed_goes_on_and_grows(tmp_path: Path) -> None:
    plm = str(save_tiny_plm(tmp_path / "tiny"))
    write_glue(tmp_path / "data", ["rte"])
    runs, log = tmp_path / "runs", tmp_path / "log"
    place = ("--runs", runs, "--data", tmp_path / "data")
    words = ("rte", *FEW, "--plm", plm, "--methods", ",".join(METHODS), *place)
    driver = start("compare", *words, "--trials", "6", log=log)
    wait_for(lambda: log.read_bytes().count(b" evaluation 2/") > 2)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = call("resume", "compare-rte", *place)
    assert done.exit_code == 0, done.output
    for method in METHODS:
        assert untruths(runs, f"compare-rte-{method}", 6) == []
    assert suite_untruths(runs, "compare-rte") == []
    kept = json.loads((runs / "sweeps" / "compare-rte" / "comparison.json").read_text())
    assert [one["name"] for one in kept["methods"]] == [*METHODS]
    assert [len(one["tried"]) for one in kept["methods"]] == [6] * 3
    assert len({one["parameters"] for one in kept["methods"][:2]}) == 1
    assert all([u["search"] for u in one["units"]] == [0, 1, 2] for one in kept["methods"])
    assert {(pair["better"], pair["worse"]) for pair in kept["pairs"]} <= {
        (a, b) for a in METHODS[:2] for b in METHODS[:2]
    }
    assert "reference" in done.stdout
    before = logs(runs)
    again = call("compare", *words, "--trials", "6")
    assert again.exit_code == 0, again.output
    assert logs(runs) == before, "nothing is trained twice"
    other = call("compare", *words, "--trials", "6", "batch_size=8")
    assert other.exit_code == 2
    assert "another comparison is called 'compare-rte', with other settings of tiny" in other.stderr
    one = call("compare", *words[:-6], "--methods", "tiny", *place)
    assert one.exit_code == 2
    assert "--methods: got tiny alone; a comparison takes two or more" in one.stderr
    fewer = call("compare", *words[:-6], "--methods", "tiny,classifier", *place, "--trials", "6")
    assert fewer.exit_code == 0, fewer.output
    assert logs(runs) == before, "what is not named stays as it is"
    also = (*METHODS, "bottleneck")
    # A driver that is killed while it adds a method leaves its name in the suite's file.
    suite = runs / "sweeps" / "compare-rte" / "suite.json"
    there = json.loads(suite.read_text())
    there["sweeps"]["bottleneck"] = "compare-rte-bottleneck"
    suite.write_text(json.dumps(there))
    wider = ("searches=4", f"methods={','.join(also)}")
    more = call("extend", "compare-rte", *wider, *place)
    assert more.exit_code == 0, more.output
    for method in also:
        assert untruths(runs, f"compare-rte-{method}", 8) == []
    assert suite_untruths(runs, "compare-rte") == []
    kept = json.loads((runs / "sweeps" / "compare-rte" / "comparison.json").read_text())
    assert [len(one["tried"]) for one in kept["methods"]] == [8] * 4
    assert all([u["search"] for u in one["units"]] == [0, 1, 2, 3] for one in kept["methods"])
    assert len(kept["pairs"]) == 3
    store = Workspace(runs).store()
    record = store.find_suite("compare-rte")
    assert record is not None
    run = store.client.get_run(record.run_id)
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith("**accuracy on ")
    assert "| bottleneck |" in note
    scores = {
        one["name"]: sum(unit["score"] for unit in one["units"]) / 4 for one in kept["methods"]
    }
    for method, score in scores.items():
        assert run.data.metrics[f"heldout/{method}"] == pytest.approx(score)
    files = {one.path for one in store.client.list_artifacts(record.run_id, "comparison")}
    assert files == {
        f"comparison/{one}" for one in ("comparison.html", "comparison.json", "figures", "results")
    }
    shown = call("report", "compare-rte", *place[:2])
    assert shown.exit_code == 0, shown.output
    later = store.client.get_run(record.run_id).data.tags["mlflow.note.content"]
    assert later.startswith("**accuracy on "), "a report leaves the comparison where it is"
    folder = runs / "sweeps" / "compare-rte"
    assert os.path.getsize(folder / "figures" / "rates.svg") > 1000
    assert {path.name for path in (folder / "results").iterdir()} == {
        f"{method}--compare-rte-search{number}.json" for method in also for number in range(1, 5)
    }
