"""A sweep over a PLM whose family a file of the user's adds, from first word to champion."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import Result
from live import call

from orchestrator.state.workspace import Workspace
from tinyattn.plms.families import FAMILIES
from tinyattn.plms.loading import find_plm

pytestmark = [pytest.mark.slow, pytest.mark.long]
ERNIE = """
import tinyattn as ta

ta.register_family(
    "ernie",
    ta.Family(layers="encoder.layer.*", attention="attention", projection="attention.output.dense"),
)
"""
SETTINGS = (
    "max_length=32", "max_train_rows=64", "epochs=1", "batch_size=16", "trials=2", "asha=null",
    "resources.concurrent=1", "name=s",
)  # fmt: skip


@pytest.fixture
def plm(tmp_path: Path) -> Path:
    """A two-layer ERNIE, which this project does not know."""
    folder = tmp_path / "plm"
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(find_plm("minilm"))
    config = transformers.ErnieConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=66,
    )  # fmt: skip
    transformers.ErnieModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def call_anew(*words: Any) -> Result:
    """Call a command that has to learn of the family itself, though all share the test's process.

    Until the next call the module stays as the command left it.
    """
    sys.modules.pop("my_plms", None)
    with FAMILIES.changes_undone():
        return call(*words)


def test_a_file_of_ones_own_is_enough(
    plm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, runs = tmp_path / "own", tmp_path / "runs"
    own.mkdir()
    monkeypatch.chdir(own)
    (own / "my_plms.py").write_text(ERNIE)
    words = ("agreement", f"plm={plm}", *SETTINGS)
    unknown = call_anew("sweep", "check", *words, "--runs", runs)
    assert unknown.exit_code == 2
    assert "PLM family 'ernie' is unknown" in unknown.stderr
    assert "name it with --import" in unknown.stderr
    checked = call_anew("sweep", "check", *words, "--import", "my_plms", "--runs", runs)
    assert checked.exit_code == 0, checked.output
    done = call_anew("sweep", "run", *words, "--import", "my_plms", "--runs", runs)
    assert done.exit_code == 0, done.output
    assert "2 completed" in done.stdout

    store = Workspace(runs).store()
    assert store.sweep_config(store.find_sweep("s"))["imports"] == ["my_plms"]  # no text in a store
    shutil.move(own / "my_plms.py", tmp_path / "elsewhere.py")  # the sweep keeps its text
    more = call_anew("sweep", "extend", "s", "trials=3", "--runs", runs)
    assert more.exit_code == 0, more.output
    assert "3 completed" in more.stdout

    shutil.move(runs / "sweeps" / "s", tmp_path / "away")  # as where only the store is shared
    lost = call_anew("finalize", "s", "--runs", runs)
    assert lost.exit_code == 2
    assert "my_plms" in lost.stderr
    assert "name each of these modules with --import" in lost.stderr
    assert "my_plms" not in sys.modules
    shutil.move(tmp_path / "away", runs / "sweeps" / "s")

    shutil.move(tmp_path / "elsewhere.py", own / "my_plms.py")
    promoted = call_anew("promote", "s", "--force", "--import", "my_plms", "--runs", runs)
    assert promoted.exit_code == 0, promoted.output
    (own / "rows.csv").write_text("sentence\nthe dog runs .\n")
    said = call_anew("predict", "agreement", "rows.csv", "--import", "my_plms", "--runs", runs)
    assert json.loads(said.stdout)["label"]
    sys.modules.pop("my_plms", None)
