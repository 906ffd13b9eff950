"""Sweeps of tasks whose rows have any number of labels: killed, resumed, and beside other tasks."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest
from live import call, start, wait_for
from sweep_truth import histories, suite_untruths, untruths
from tiny_plm import save_tiny_plm

pytestmark = [pytest.mark.slow, pytest.mark.long]

SETTINGS = (
    "max_length=16", "max_select_rows=48", "batch_size=16", "epochs=6", "search.trials=2",
    "search.sampler=random", "search.points=[]", "search.seed=0", "asha=null", "plm_dropout=false",
    "resources.cpus=1",
)  # fmt: skip


def write_topics(folder: Path) -> Path:
    """Rows with a weight and none, one or two of four labels, of which one is rare."""
    luck, words = random.Random(0), ("music", "war", "bread", "gold")
    lines = []
    for number in range(160):
        own = luck.sample(words[:3], number % 3) + ["gold"] * (number % 20 == 7)
        lines.append(f"{' '.join(own)} and {number},{';'.join(own)},{number % 4}")
    (folder / "train.csv").write_text("\n".join(["text,topics,w", *lines]))
    told = {"kind": "multilabel", "name": "topics", "folder": ".", "labels": words,
            "text_columns": "text", "label_column": "topics", "weight_column": "w"}  # fmt: skip
    (folder / "topics.yaml").write_text(json.dumps(told))
    return folder / "topics.yaml"


def test_a_sweep_of_sets_of_labels_that_was_killed_is_the_one_that_was_left_in_peace(
    tmp_path: Path,
) -> None:
    """Alone in its place: every trial once, each evaluation once, and the same scores."""
    task, plm = write_topics(tmp_path), save_tiny_plm(tmp_path / "plm", spread=0.2)
    runs, log = tmp_path / "runs", tmp_path / "log"
    words = ("sweep", "run", "minilm", f"task={task}", f"plm={plm}", *SETTINGS, "--runs", runs)
    whole = call(*words, "name=whole", "resources.concurrent=1")
    assert whole.exit_code == 0, whole.output
    driver = start(*words, "name=s", "resources.concurrent=1", log=log)
    wait_for(lambda: b"search_00002 evaluation 2/" in log.read_bytes(), seconds=600)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = call("sweep", "resume", "s", "--runs", runs)
    assert done.exit_code == 0, done.output
    assert untruths(runs, "s", 2) == []
    for key in ("train_loss", "score", "select_loss"):
        undisturbed = histories(runs, "whole", key=key)
        assert [len(own) for own in undisturbed.values()] == [12, 12]
        assert histories(runs, "s", key=key) == undisturbed


def test_a_suite_with_sets_of_labels_that_was_killed_loses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    """Beside a task of classes; its losses are those of a sweep alone that was left in peace."""
    task, plm = write_topics(tmp_path), save_tiny_plm(tmp_path / "plm", spread=0.2)
    runs, log = tmp_path / "runs", tmp_path / "log"
    balanced = "loss.class_weights: balanced"
    own = (f"task={task}", f"plm={plm}", "loss.class_weights=balanced", "resources.concurrent=1")
    alone = call("sweep", "run", "minilm", "name=alone", *own, *SETTINGS, "--runs", runs)
    assert alone.exit_code == 0, alone.output
    file = tmp_path / "two.yaml"
    file.write_text(
        "suite:\n"
        f"  - sweep: minilm\n    name: topics\n    set: {{task: {task}, {balanced}}}\n"
        "  - {sweep: minilm, name: words, set: {task: agreement, max_train_rows: 160}}\n"
        f"set: {{plm: {plm}}}\n"
    )
    driver = start("sweep", "run", file, "name=s", *SETTINGS, "--runs", runs, log=log)
    wait_for(lambda: b"topics search_00001 evaluation 2/" in log.read_bytes(), seconds=600)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = call("sweep", "resume", "s", "--runs", runs)
    assert done.exit_code == 0, done.output
    assert [untruths(runs, f"s-{member}", 2) for member in ("topics", "words")] == [[], []]
    assert suite_untruths(runs, "s") == []
    whole = histories(runs, "alone")
    assert all(len(losses) == 12 for losses in whole.values())
    assert histories(runs, "s-topics") == whole
