"""What others wrote: files that are none, are too large or too deep, and cards that lie."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from adapter_files import read_adapter
from peak import mark, peak
from tiny_plm import save_tiny_plm

from tinyattn.adapters.checkpoint import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterCard,
    TaskCard,
    read_card,
)
from tinyattn.adapters.model import AdaptedModel
from tinyattn.config import AdapterConfig
from tinyattn.errors import AdapterError
from tinyattn.files.outside import UnfitError, decode, open_file, parse_json, read_bytes, read_text
from tinyattn.plms.loading import Plm, load_plm
from tinyattn.predict import Predictor


@pytest.fixture(scope="module")
def plm(tmp_path_factory: pytest.TempPathFactory) -> Plm:
    """Two layers, H = 32, 64 positions."""
    return load_plm(str(save_tiny_plm(tmp_path_factory.mktemp("plm"))))


@pytest.fixture
def folder(tmp_path: Path, plm: Plm) -> Path:
    """A whole adapter folder of that PLM."""
    model = AdaptedModel(plm.model)
    model.add_adapter("a", AdapterConfig(), num_outputs=2)
    task = TaskCard(
        name="t",
        text_columns=("text",),
        labels=("no", "yes"),
        score_range=None,
        metrics=("accuracy",),
        max_length=64,
    )
    model.save(tmp_path / "adapter", plm, task=task)
    model.detach()
    return tmp_path / "adapter"


def reseal(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a card as somebody would who knows how hashes are made."""
    content = json.loads((folder / CONFIG_FILE).read_text())
    content["weights_sha256"] = hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
    change(content)
    content["card_sha256"] = ""
    with contextlib.suppress(ValueError):  # such a card is refused before its hash is looked at
        content = AdapterCard.model_validate(content).sealed().model_dump()
    (folder / CONFIG_FILE).write_text(json.dumps(content))


def load(folder: Path, plm: Plm) -> None:
    model = AdaptedModel(plm.model, read_card(folder).adapter.placement)
    try:
        model.load(folder, plm)
    finally:
        model.detach()


# ---- files ----


def test_only_ordinary_files_are_read_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    before = os.getcwd()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(tmp_path)  # an address of a socket has 107 characters at most
        try:
            server.bind("socket")
        finally:
            os.chdir(before)
        for name, kind in (
            ("pipe", "a pipe"),
            ("link", "a pipe"),
            ("zero", "a device"),
            ("socket", "a socket"),
            (".", "a folder"),
        ):
            with pytest.raises(UnfitError, match=f"it is {kind}, needed is an ordinary file"):
                open_file(tmp_path / name)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UnfitError, match="1,099,511,627,776 bytes, allowed are 1,000"):
        read_bytes(tmp_path / "sparse", 1000)
    (tmp_path / "small").write_bytes(b"\xef\xbb\xbfabc")
    assert read_text(tmp_path / "small", 6) == "abc"
    with pytest.raises(UnfitError, match="6 bytes, allowed are 5"):
        read_text(tmp_path / "small", 5)
    with pytest.raises(UnfitError, match="allowed are 10"):
        read_bytes(Path("/proc/cpuinfo"), 10)  # the system says that it has none


def test_text_that_is_not_utf_8_is_named_by_its_line() -> None:
    with pytest.raises(UnfitError, match=r"line 7 is not UTF-8 text \(byte 0xe9 came\); save"):
        decode("a\nb\ncafé".encode("latin-1"), line=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "more than 64 deep"),
        ("[" * 65 + "]" * 65, "more than 64 deep"),
        ('{"a":' * 500 + "1" + "}" * 500, "more than 64 deep"),
        ("9" * 5000, "not valid JSON .*integer string"),
        ("9" * 30, "a whole number of 100 bits"),  # log2(1e30) = 99.7
        ("[-9223372036854775809]", "a whole number of 64 bits"),
        ("NaN", "NaN came"),
        ("[-Infinity]", "-Infinity came"),
        ("1e999", "the number inf came"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' is given twice"),
        (r'{"a": ["\ud800"]}', "not Unicode text"),
        (r'{"\udfff": 1}', "not Unicode text"),
        (r'"a\u0000b"', "not Unicode text"),
        ("", "not valid JSON"),
        ("{} {}", "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
    ],
)
def test_json_that_would_break_what_comes_after(text: str, message: str) -> None:
    with pytest.raises(UnfitError, match=message):
        parse_json(text)


def test_json_that_is_fine() -> None:
    text = '{"a": [1, -2.5e-3, null, true, "π😀"], "b": 9223372036854775807}'
    assert parse_json(text) == json.loads(text)
    assert parse_json("[" * 64 + "]" * 64)
    assert np.isnan(parse_json("NaN", nan=True))


# ---- adapter folders ----


def test_a_card_of_giant_heads_takes_no_memory(folder: Path, plm: Plm) -> None:
    """256 heads of 1024 dimensions at H = 4096 would be 17 GB a layer."""
    reseal(folder, lambda card: card["adapter"].update(num_heads=256, head_dim=1024))
    before = mark()
    with pytest.raises(AdapterError, match=r"67,[0-9,]* weights came, allowed with this PLM are"):
        load(folder, plm)
    assert peak() - before < 300_000  # KB


def test_weights_larger_than_the_card_says_are_not_read(folder: Path, plm: Plm) -> None:
    with (folder / WEIGHTS_FILE).open("ab") as file:
        file.truncate(2**33)
    with pytest.raises(AdapterError, match=r"8,589,934,592 bytes, allowed are 1,[0-9,]*; restore"):
        load(folder, plm)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w | {"classifier.bias": torch.tensor([0.0, np.nan])}, "bias holds NaN"),
        (lambda w: w | {"classifier.bias": torch.tensor([0.0, np.inf])}, "holds NaN or infinity"),
        (lambda w: {k: v.double() for k, v in w.items()}, "float64, allowed is float32"),
        (lambda w: {k: v.to(torch.int8) for k, v in w.items()}, "int8, allowed is float32"),
        (lambda w: {k: v.to(torch.complex64) for k, v in w.items()}, "complex64, allowed is"),
        (lambda w: {k: v.bfloat16() for k, v in w.items()}, "bfloat16, allowed is float32"),
        (lambda w: {k: v.bool() for k, v in w.items()}, "bool, allowed is float32"),
        (lambda w: {k: v[..., None] for k, v in w.items()}, "weights do not fit"),
        (lambda w: w | {"classifier.bias": torch.zeros(3)}, "weights do not fit"),
        (lambda w: w | {"x" * 500: torch.zeros(0)}, "weights do not fit"),
        (lambda w: {}, "weights do not fit"),
    ],
)
def test_weights_of_another_kind_whose_hashes_are_right(
    folder: Path, plm: Plm, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    weights = change(safetensors.torch.load_file(folder / WEIGHTS_FILE))
    safetensors.torch.save_file(weights, folder / WEIGHTS_FILE)
    reseal(folder, lambda card: None)
    with pytest.raises(AdapterError, match=message):
        load(folder, plm)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["task"].update(max_length=-5), "task.max_length"),
        (lambda c: c["task"].update(max_length=65), "max_length 65 came, the PLM .* has 64"),
        (lambda c: c["task"].update(text_columns=[]), "task.text_columns"),
        (lambda c: c["task"].update(text_columns=[""]), "task.text_columns.0"),
        (lambda c: c["task"].update(text_columns=["a", "a"]), "each is allowed once"),
        (lambda c: c["task"].update(labels=["a", "a"]), "each is allowed once"),
        (lambda c: c["task"].update(labels=["a"] * 100_000), "task.labels"),
        (lambda c: c["task"].update(metrics=[]), "task.metrics"),
        (lambda c: c["plm"].update(hidden_size=10**12), "plm.hidden_size"),
        (lambda c: c["plm"].update(hidden_size=64), "hidden_size 64 came, the PLM .* has 32"),
        (lambda c: c.update(num_outputs=10**9), "num_outputs"),
        (lambda c: c["adapter"].update(layers="top-" + "9" * 5000), "adapter.layers"),
        (lambda c: c["adapter"].update(layers=[0, 2]), "PLM has 2 layers"),
        (lambda c: c["adapter"].update(head_dim=2**70), "whole number of 71 bits"),
        (lambda c: c.update(lineage={"a": "x" * 2**20}), "bytes, allowed are 1,048,576"),
    ],
)
def test_cards_that_lie(
    folder: Path, plm: Plm, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    reseal(folder, change)
    with pytest.raises(AdapterError, match=message):
        load(folder, plm)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_pipe_in_an_adapter_folder_does_not_hang(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(AdapterError, match="cannot be read: it is a pipe"):
        read_adapter(folder)


def test_outputs_that_are_no_numbers_are_not_printed(folder: Path) -> None:
    """Weights may be finite and what they make of a row not; JSON has no NaN."""
    weights = safetensors.torch.load_file(folder / WEIGHTS_FILE)
    weights["classifier.weight"].fill_(3e38)
    safetensors.torch.save_file(weights, folder / WEIGHTS_FILE)
    reseal(folder, lambda card: None)
    predictor = Predictor(folder)
    try:
        with pytest.raises(AdapterError, match="row 1: the adapter's outputs are not finite"):
            predictor.predict([{"text": "a cat"}])
    finally:
        predictor.close()
