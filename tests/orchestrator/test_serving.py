"""A model of several adapters as MLflow loads it: by pyfunc, from a folder without a pickle."""

from __future__ import annotations

from pathlib import Path

import mlflow.pyfunc
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from tiny_plm import save_tiny_plm

from orchestrator.serving import save_mixed_model
from tinyattn.checkpoint import TaskCard
from tinyattn.config import AdapterConfig
from tinyattn.errors import UsageError
from tinyattn.model import AdaptedModel
from tinyattn.plm import load_plm
from tinyattn.predict import load_predictor


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    plm = load_plm(str(save_tiny_plm(folder / "plm")))
    found = {}
    for seed, (name, column) in enumerate({"film": "sentence", "rhyme": "verse"}.items()):
        model = AdaptedModel(plm.model)
        model.add_adapter("made", AdapterConfig(), 2, seed=seed)
        card = TaskCard(
            name=name, text_columns=(column,), labels=("no", f"{name} yes"), score_range=None,
            metrics=("accuracy",), max_length=32,
        )  # fmt: skip
        model.save(folder / name, plm, task=card)
        model.detach()
        found[name] = folder / name
    return found


def test_each_row_is_answered_by_the_adapter_it_names(
    adapters: dict[str, Path], tmp_path: Path
) -> None:
    save_mixed_model(adapters, tmp_path / "model")
    kinds = {path.suffix for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert kinds <= {"", ".json", ".safetensors", ".txt", ".yaml"}
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    rows = [
        {"adapter": "film", "sentence": "fine"},
        {"adapter": "rhyme", "verse": "time"},
        {"adapter": "film", "sentence": "dull"},
    ]
    table = model.predict(pd.DataFrame(rows, index=[5, 6, 9]))
    assert list(table.index) == [5, 6, 9]
    for (index, said), row in zip(table.iterrows(), rows, strict=True):
        alone = load_predictor(adapters[row["adapter"]])
        (wanted,) = alone.predict([row])
        alone.close()
        assert said["label"] == wanted["label"], index
        for label, share in wanted["probabilities"].items():
            assert said[f"probability_{label}"] == pytest.approx(share, abs=1e-6)
    assert pd.isna(table.loc[6, "probability_film yes"])
    with pytest.raises((UsageError, MlflowException), match="no adapter 'poem'"):
        model.predict(pd.DataFrame([{"adapter": "poem", "verse": "x"}]))
    with pytest.raises(MlflowException, match="adapter"):
        model.predict(pd.DataFrame([{"verse": "x"}]))


def test_names_become_folders_and_nothing_else(adapters: dict[str, Path], tmp_path: Path) -> None:
    for name in ("../up", "a/b", "", ".hidden"):
        with pytest.raises(UsageError, match="allowed are letters"):
            save_mixed_model({name: adapters["film"]}, tmp_path / "model")
    assert not (tmp_path / "model").exists()
