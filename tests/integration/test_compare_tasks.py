"""`tinyattn compare` on several tasks, through the real command line."""

from __future__ import annotations

import json
import signal
import statistics
from pathlib import Path

import pytest
from glue_files import write_glue
from live import call, start, wait_for
from sweep_truth import suite_untruths, untruths
from tiny_plm import save_tiny_plm

pytestmark = [pytest.mark.slow, pytest.mark.long]

METHODS = ("tiny", "lora", "classifier")
TASKS = ("rte", "mrpc")
FEW = (
    "max_length=32", "max_train_rows=96", "max_select_rows=48", "epochs=2",
)  # fmt: skip


def logs(runs: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in runs.glob("sweeps/*/*.jsonl")}


def test_a_comparison_over_tasks_that_was_killed_goes_on(tmp_path: Path) -> None:
    plm = str(save_tiny_plm(tmp_path / "tiny"))
    write_glue(tmp_path / "data", TASKS)
    runs, log = tmp_path / "runs", tmp_path / "log"
    place = ("--runs", runs, "--data", tmp_path / "data")
    rest = (*FEW, "--plm", plm, "--methods", ",".join(METHODS), *place, "--trials", "6")
    own = tmp_path / "own.yaml"
    own.write_text(
        "name: mine\ntext_columns: [text]\nlabels: [a, b]\nmetrics: [accuracy]\nfolder: nowhere\n"
    )
    (tmp_path / "nowhere").mkdir()
    lacking = call("compare", f"rte,{own}", *rest)
    assert lacking.exit_code == 2, "all is checked before anything starts"
    assert f"{own}:\n  tiny, lora, classifier: no file {tmp_path / 'nowhere'}" in lacking.stderr
    assert not (runs / "sweeps").exists()
    driver = start("compare", ",".join(TASKS), *rest, log=log)
    wait_for(lambda: b"\ntask mrpc" in log.read_bytes(), seconds=300)
    wait_for(lambda: log.read_bytes().rpartition(b"\ntask mrpc")[2].count(b" evaluation 2/") > 2)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    first = {path: text for path, text in logs(runs).items() if "-mrpc-rte-" in path}
    for name in ("compare-rte-mrpc-mrpc", "compare-rte-mrpc"):  # a task of it, and the whole
        assert "`tinyattn resume compare-rte-mrpc --runs" in call("status", name, *place[:2]).output
    done = call("resume", "compare-rte-mrpc", *place)
    assert done.exit_code == 0, done.output
    assert {path: text for path, text in logs(runs).items() if path in first} == first
    for task in TASKS:
        assert suite_untruths(runs, f"compare-rte-mrpc-{task}") == []
        for method in METHODS:
            assert untruths(runs, f"compare-rte-mrpc-{task}-{method}", 6) == []
    assert "2 tasks" in done.stdout
    assert "On these tasks" in done.stdout
    whole = json.loads((runs / "comparisons" / "compare-rte-mrpc" / "comparison.json").read_text())
    assert [one["task"] for one in whole["tasks"]] == [*TASKS]
    for number, task in enumerate(TASKS):
        kept = (runs / "sweeps" / f"compare-rte-mrpc-{task}" / "comparison.json").read_text()
        own = json.loads(kept)["methods"]
        assert [one["scores"][number] for one in whole["methods"]] == pytest.approx(
            [statistics.mean(unit["score"] for unit in one["units"]) for one in own]
        )
    tiny, lora, bare = whole["methods"]
    assert [sum(ranks) for ranks in zip(tiny["ranks"], lora["ranks"], strict=True)] == [3, 3]
    assert bare["ranks"] is None
    page = (runs / "comparisons" / "compare-rte-mrpc" / "comparison.html").read_text()
    assert page.count("../../sweeps/compare-rte-mrpc-") == 2
    kept = [path.relative_to(runs) for path in runs.glob("artifacts/**/over-tasks/*")]
    assert sorted(path.name for path in kept) == 2 * ["comparison.html"] + 2 * ["comparison.json"]
    before = logs(runs)
    again = call("compare", ",".join(TASKS), *rest)
    assert again.exit_code == 0, again.output
    assert logs(runs) == before, "nothing is trained twice"
