"""Tasks of texts and tags through the real command line: sweep, finalize, promote, predict.

The PLM is tiny and random, so scores say nothing; that they are the right ones does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from generation_files import copying_rows, save_decoder, write_generation_task

from orchestrator.cli import main
from orchestrator.state.workspace import Workspace
from tinyattn.adapters.checkpoint import read_card
from tinyattn.config import TrainConfig
from tinyattn.predict import load_predictor
from tinyattn.serving import save_model
from tinyattn.tasks import compute_metrics, find_task
from tinyattn.training.model_cache import ModelCache

pytestmark = pytest.mark.slow


def command(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


def test_a_sweep_is_finalized_and_its_winner_writes(
    build_plm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYATTN_CACHE", str(tmp_path / "cache"))
    plm = save_decoder(tmp_path / "plm", build_plm)
    rows = [
        row | {"thing": f"{row['thing']} word{n % 30}"} for n, row in enumerate(copying_rows(90, 0))
    ]
    task = write_generation_task(tmp_path, rows)
    place = ("--runs", tmp_path / "runs")
    settings = (
        f"task={task}", f"plm={plm}", "name=job", "max_length=24", "epochs=2", "search.trials=2",
        "asha=null", "finalize.finalists=1", "finalize.seeds=1", "finalize.search.trials=1",
        "adapter.norm=plain",
    )  # fmt: skip
    for words in (
        ("sweep", "check", "agreement", *settings),
        ("sweep", "run", "agreement", *settings),
        ("finalize", "job"),
    ):
        result = command(*words, *place)
        assert result.exit_code == 0, result.output
    assert "classifier alone" not in result.stdout
    assert "Collapsing" in result.stdout
    refused = command("promote", "job", *place)
    assert refused.exit_code == 2
    assert "better than the PLM without an adapter, which is not measured" in refused.stderr
    forced = command("promote", "job", "--force", *place)
    assert forced.exit_code == 0, forced.output

    tracker = Workspace(tmp_path / "runs").tracker()
    trials = tracker.trials_of(tracker.find_sweep("job"))
    rival = next(trial for trial in trials if trial.kind == "expert")
    compared = command("promote", rival.run_id, *place)
    assert compared.exit_code == 0, compared.output
    assert "of version 1 on the held-out rows, p = " in compared.stdout
    assert {trial.kind for trial in trials} == {"trial", "finalist", "expert", "collapsed"}
    champion = next(trial for trial in trials if trial.kind in ("finalist", "collapsed"))
    (tmp_path / "got").mkdir()
    adapter = tracker.download(champion.run_id, "adapter", tmp_path / "got")
    config = TrainConfig(task=task, plm=str(plm), max_length=24)
    heldout = ModelCache().data(config).heldout
    assert heldout is not None
    predictor = load_predictor(adapter)
    scores = compute_metrics(find_task(task), predictor.outputs(heldout), heldout.flat().labels)
    saved = {key.removeprefix("heldout/"): v for key, v in read_card(adapter).scores.items()}
    assert scores == {key: pytest.approx(saved[key]) for key in scores}

    asked = [{"color": "red", "thing": "the old dog"}, {"color": "blue", "thing": "a cat"}]
    (tmp_path / "asked.jsonl").write_text(
        "".join(json.dumps({"id": n} | row) + "\n" for n, row in enumerate(asked))
    )
    answered = command("predict", adapter, tmp_path / "asked.jsonl", *place)
    assert answered.exit_code == 0, answered.output
    wanted = predictor.predict(asked)
    predictor.close()
    assert [json.loads(line) for line in answered.stdout.splitlines()] == [
        {"id": n} | answer for n, answer in enumerate(wanted)
    ]

    import mlflow.pyfunc
    import pandas as pd

    save_model(adapter, tmp_path / "model", task=find_task(task))
    served = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert served.metadata.signature.outputs.input_names() == ["text"]
    found = served.predict(pd.DataFrame(asked))
    assert found["text"].tolist() == [answer["text"] for answer in wanted]
