"""Adapter folders whose card, weights and hashes were made to mislead."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from guard import bounded, damaged_bytes, damaged_json, fresh, refused_or_read
from hypothesis import given
from hypothesis import strategies as st
from tiny_plm import save_tiny_plm

from tinyattn.adapters.checkpoint import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterCard,
    MultilabelCard,
    TaskCard,
)
from tinyattn.adapters.model import AdaptedModel
from tinyattn.config import AdapterConfig
from tinyattn.plms.loading import Plm, load_plm
from tinyattn.predict import Predictor
from tinyattn.training.model_cache import ModelCache


class Known(ModelCache):
    """A model cache with one PLM, whatever a card calls it."""

    def __init__(self, plm: Plm) -> None:
        super().__init__(device="cpu")
        self.one = plm

    def plm(self, name: str, precision: str = "fp32") -> Plm:
        return self.one


@pytest.fixture(scope="module")
def plm(tmp_path_factory: pytest.TempPathFactory) -> Plm:
    return load_plm(str(save_tiny_plm(tmp_path_factory.mktemp("plm"))))


SETS = MultilabelCard(separators=(";", ","), columns=("x", "y"), thresholds=(0.5, 0.01))


@pytest.fixture(scope="module", params=[None, SETS], ids=["classes", "sets"])
def folder(
    tmp_path_factory: pytest.TempPathFactory, plm: Plm, request: pytest.FixtureRequest
) -> Path:
    """A whole adapter."""
    model, folder = AdaptedModel(plm.model), tmp_path_factory.mktemp("a") / "adapter"
    model.add_adapter("a", AdapterConfig(layers=(0, 1)), num_outputs=2)
    task = TaskCard(
        name="t", text_columns=("a", "b"), labels=("no", "yes"), score_range=None,
        metrics=("accuracy",), max_length=64, multilabel=request.param,
    )  # fmt: skip
    lineage = {"config": {"seed": 1, "start": None}, "runs": ["x"]}
    model.save(folder, plm, task=task, scores={"select/accuracy": 1.0}, lineage=lineage)
    model.detach()
    return folder


def use(folder: Path, plm: Plm) -> Any:
    """Load an adapter and answer two rows; what it answers must be JSON."""

    def answer() -> str:
        predictor = Predictor(folder, Known(plm))
        try:
            row = dict.fromkeys(predictor.task.text_columns, "a b")
            return json.dumps(predictor.predict([row, row]), allow_nan=False)
        finally:
            predictor.close()

    return refused_or_read(answer, folder)


def sealed(card: str, weights: bytes) -> str:
    """A card with the right hashes, where it is one."""
    try:
        content = json.loads(card)
        content |= {"weights_sha256": hashlib.sha256(weights).hexdigest(), "card_sha256": ""}
        return AdapterCard.model_validate(content).sealed().model_dump_json()
    except (ValueError, TypeError, RecursionError):
        return card


@bounded
@given(data=st.data(), sealing=st.booleans())
def test_cards(
    data: st.DataObject, sealing: bool, folder: Path, plm: Plm, tmp_path_factory: Any
) -> None:
    whole = json.loads((folder / CONFIG_FILE).read_text())
    text = data.draw(damaged_json(whole))
    weights = (folder / WEIGHTS_FILE).read_bytes()
    card = sealed(text, weights) if sealing else text
    use(_with(tmp_path_factory, card, weights), plm)


_TYPES = [torch.int8, torch.float64, torch.float16, torch.bool, torch.complex64, torch.float32]
_VALUES = [0.0, float("nan"), float("inf"), 3e38, -3e38, 1e-45, 1.0]


@bounded
@given(data=st.data())
def test_weights(data: st.DataObject, folder: Path, plm: Plm, tmp_path_factory: Any) -> None:
    """Of other types, shapes, names and values; their hashes are right."""
    weights = safetensors.torch.load_file(folder / WEIGHTS_FILE)
    for key in data.draw(st.lists(st.sampled_from(sorted(weights)), max_size=3)):
        if key in weights:
            match data.draw(st.integers(0, 4)):
                case 0:
                    weights[key] = weights[key].to(data.draw(st.sampled_from(_TYPES)))
                case 1:
                    weights[key] = torch.full(
                        weights[key].shape, data.draw(st.sampled_from(_VALUES))
                    )
                case 2:
                    weights[data.draw(st.text(max_size=8))] = weights.pop(key)
                case 3:
                    weights[key] = torch.zeros(data.draw(st.lists(st.integers(0, 9), max_size=4)))
                case 4:
                    del weights[key]
    content = safetensors.torch.save(weights)
    if data.draw(st.booleans()):
        content = data.draw(damaged_bytes(content))
    card = sealed((folder / CONFIG_FILE).read_text(), content)
    use(_with(tmp_path_factory, card, content), plm)


def _with(factory: Any, card: str, weights: bytes) -> Path:
    folder = fresh(factory)
    (folder / CONFIG_FILE).write_text(card, encoding="utf-8", errors="surrogatepass")
    (folder / WEIGHTS_FILE).write_bytes(weights)
    return folder
