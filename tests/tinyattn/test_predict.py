"""Predictions of a saved adapter, against the model run by hand; what a wrong folder gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_plm import save_tiny_plm

from tinyattn.checkpoint import CONFIG_FILE, WEIGHTS_FILE, TaskCard
from tinyattn.config import AdapterConfig
from tinyattn.data import read_rows
from tinyattn.errors import AdapterError, TaskError
from tinyattn.model import AdaptedModel
from tinyattn.plm import load_plm
from tinyattn.predict import Predictor, load_predictor

LABELS = ("rain", "sun", "snow")


@pytest.fixture(scope="module")
def plm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_plm(tmp_path_factory.mktemp("plm") / "tiny")


def save(folder: Path, plm_folder: Path, task: TaskCard | None, outputs: int | None) -> Path:
    """An adapter with random weights that matter, on the tiny PLM."""
    plm = load_plm(str(plm_folder))
    model = AdaptedModel(plm.model)
    adapter = model.add_adapter("made", AdapterConfig(num_heads=2), outputs, seed=3)
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws))
    model.save(folder, plm, task=task)
    model.detach()
    return folder


def card(**changes: Any) -> TaskCard:
    fields = {
        "name": "weather", "text_columns": ("morning", "evening"), "labels": LABELS,
        "score_range": None, "metrics": ("accuracy",), "max_length": 32, **changes,
    }  # fmt: skip
    return TaskCard(**fields)


@pytest.fixture
def folder(plm_folder: Path, tmp_path: Path) -> Path:
    return save(tmp_path / "adapter", plm_folder, card(), 3)


@pytest.fixture
def predictor(folder: Path) -> Iterator[Predictor]:
    made = load_predictor(folder)
    yield made
    made.close()


ROWS = [
    {"morning": "clouds everywhere, and a long grey day ahead of us", "evening": "wet"},
    {"morning": "bright", "evening": "stars"},
    {"morning": "", "evening": "frost on the window"},
]


def test_probabilities_are_the_softmax_of_the_models_outputs(predictor: Predictor) -> None:
    answers = predictor.predict(ROWS)
    predictor.model.eval()
    for row, answer in zip(ROWS, answers, strict=True):
        # One row at a time, tokenised here: no batch, no padding.
        inputs = predictor.plm.tokenizer(row["morning"], row["evening"], return_tensors="pt")
        with torch.no_grad():
            expected = torch.softmax(predictor.model(**inputs)[0].double(), dim=0)
        assert list(answer["probabilities"]) == list(LABELS)
        found = list(answer["probabilities"].values())
        assert found == pytest.approx(expected.tolist(), abs=1e-5)
        assert sum(found) == pytest.approx(1, abs=1e-12)
        assert answer["label"] == LABELS[int(expected.argmax())]
    assert len({json.dumps(answer) for answer in answers}) == 3


def test_order_and_company_of_rows_do_not_matter(predictor: Predictor) -> None:
    rows = [{"morning": f"{'word ' * (i % 13)}{i}", "evening": "x"} for i in range(60)]
    answers = predictor.predict(rows)
    turned = predictor.predict(rows[::-1])[::-1]
    for a, b in zip(answers, turned, strict=True):
        assert list(a["probabilities"].values()) == pytest.approx(
            list(b["probabilities"].values()), abs=1e-5
        )


def test_regression_gives_the_score(plm_folder: Path, tmp_path: Path) -> None:
    task = card(labels=None, score_range=(0.0, 5.0), metrics=("pearson",))
    made = load_predictor(save(tmp_path / "score", plm_folder, task, 1))
    made.model.eval()
    inputs = made.plm.tokenizer(ROWS[1]["morning"], ROWS[1]["evening"], return_tensors="pt")
    with torch.no_grad():
        expected = float(made.model(**inputs)[0, 0])
    assert made.predict(ROWS)[1] == {"score": pytest.approx(expected, abs=1e-5)}
    made.close()


def test_a_text_of_10000_words_is_cut_and_counted(predictor: Predictor, tmp_path: Path) -> None:
    long = {"morning": "storm " * 10_000, "evening": "wet"}
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [ROWS[0], long]))
    split = predictor.split(read_rows(file, predictor.task))
    assert split.truncated == 1
    # The longer text of the pair is cut: [CLS] storm*28 [SEP] wet [SEP] is 32 tokens.
    short = {"morning": "storm " * 28, "evening": "wet"}
    found, expected = predictor.predict_split(split)[1], predictor.predict([short])[0]
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


def test_no_rows_and_wrong_rows(predictor: Predictor) -> None:
    assert predictor.predict([]) == []
    with pytest.raises(TaskError, match="no column 'evening'"):
        predictor.predict([{"morning": "a"}])
    with pytest.raises(TaskError, match="row 2: column 'evening' holds None"):
        predictor.predict([ROWS[0], {"morning": "a", "evening": None}])


def test_a_truncated_or_changed_file(folder: Path, plm_folder: Path) -> None:
    weights = folder / WEIGHTS_FILE
    whole = weights.read_bytes()
    for content in (whole[:-7], whole[:-1] + bytes([whole[-1] ^ 1])):
        weights.write_bytes(content)
        with pytest.raises(AdapterError, match="truncated or changed since it was saved"):
            load_predictor(folder)
    weights.write_bytes(whole)
    # A refused folder leaves the shared PLM as it was.
    config = folder / CONFIG_FILE
    config.write_text(config.read_text().replace('"num_outputs": 3', '"num_outputs": 4'))
    with pytest.raises(AdapterError):
        load_predictor(folder)


def test_another_plm_is_refused(folder: Path, tmp_path: Path) -> None:
    other = save_tiny_plm(tmp_path / "other", seed=1)
    with pytest.raises(AdapterError, match="fingerprint"):
        load_predictor(folder, plm=str(other))


def test_the_same_plm_in_another_place_is_welcome(folder: Path, tmp_path: Path) -> None:
    copy = save_tiny_plm(tmp_path / "copy")
    with_copy, first = load_predictor(folder, plm=str(copy)), load_predictor(folder)
    assert with_copy.predict(ROWS) == first.predict(ROWS)


def test_an_adapter_without_classifier_predicts_nothing(plm_folder: Path, tmp_path: Path) -> None:
    made = save(tmp_path / "bare", plm_folder, None, None)
    with pytest.raises(AdapterError, match="no classifier"):
        load_predictor(made)


def test_outputs_are_those_of_predict(predictor: Predictor, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("morning,evening\n" + "".join(f"{r['morning']!r},x\n" for r in ROWS[1:]))
    split = predictor.split(read_rows(file, predictor.task))
    outputs = predictor.outputs(split)
    assert outputs.shape == (2, 3)
    labels = [LABELS[i] for i in np.argmax(outputs, axis=1)]
    assert [answer["label"] for answer in predictor.predict_split(split)] == labels
