"""Stores that are not there, not a store, or fail later: one message, nothing made on the way."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlflow_sweeps import Sweeps

from orchestrator.cli import main
from orchestrator.store import Store
from tinyattn.errors import StorageError


def _refused(code: int, *words: object) -> str:
    """Run a command that must end with one message; return the message."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error: ")
    return result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["leaderboard"],
        ["leaderboard", "--json"],
        ["finalize", "x"],
        ["promote", "x"],
        ["rollback", "rte"],
        ["predict", "rte", "rows.jsonl"],
        ["report", "x"],
        ["ui"],
    ],
)
def test_a_mistyped_database_is_named_and_not_made(tmp_path: Path, words: list[str]) -> None:
    uri = f"sqlite:///{tmp_path}/typo/x.db"
    message = _refused(2, *words, "--tracking-uri", uri, "--runs", tmp_path / "runs")
    assert f"{uri} holds no store of sweeps" in message
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_such_trials_is_named(sweeps: Sweeps) -> None:
    message = _refused(2, "leaderboard", "--tracking-uri", sweeps.tracker.uri)
    assert f"the store {sweeps.tracker.uri} has no trials; run a sweep first" in message


def test_a_suite_without_glue_says_so(sweeps: Sweeps) -> None:
    sweeps.start(task="agreement")
    sweeps.trial("t1", [0.9])
    message = _refused(2, "leaderboard", "--suite", "--tracking-uri", sweeps.tracker.uri)
    assert "no ranked trial of a GLUE task" in message


def test_the_suite_shows_a_table_for_each_plm(sweeps: Sweeps) -> None:
    for plm, score in (("roberta-large", 0.8), ("minilm", 0.6)):
        sweeps.start(plm, task="rte", plm=plm)
        sweeps.trial("t1", [score], heldout=score)
    words = ["leaderboard", "--suite", "--tracking-uri", sweeps.tracker.uri]
    shown = CliRunner().invoke(main, words).stdout
    tables = shown.split("GLUE, ")[1:]
    assert [table.split(",")[0] for table in tables] == ["minilm", "roberta-large"]
    assert ["60.00" in table for table in tables] == [True, False]


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("http://host:abc", "abc"),
        ("http://[::1", "Invalid IPv6"),
        ("mssql+nodriver:///db", "nodriver"),
        ("mysql:///db", "No module named"),
    ],
)
def test_an_address_that_is_none_or_lacks_its_driver_is_one_message(uri: str, why: str) -> None:
    with pytest.raises(StorageError, match="cannot be opened") as raised:
        Store(uri)
    assert why in str(raised.value)
    assert _refused(1, "leaderboard", "--tracking-uri", uri)


def test_a_store_that_breaks_after_opening_is_one_message(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps.start()
    uri = sweeps.tracker.uri
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        database.execute("drop table tags")
    message = _refused(1, "leaderboard", "--tracking-uri", uri)
    assert message.startswith("error: the MLflow store failed: ")
    assert message.count("\n") == 1
