"""Files of rows of every format, damaged in the bytes or in what they say."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from guard import bounded, damaged_bytes, damaged_json, fresh, refused_or_read
from hypothesis import given
from hypothesis import strategies as st

from tinyattn.data.splits import read_rows
from tinyattn.tasks.base import Task
from tinyattn.tasks.multilabel import Multilabel

TASK = Task("t", ("a", "b"), ("no", "yes"), None, ("accuracy",))
SCORED = Task("t", ("a",), None, (0.0, 5.0), ("pearson",))
SETS = replace(TASK, metrics=("map",), multilabel=Multilabel((";", ",")))
FLAGS = Task(
    "t", ("a",), ("b", "label"), None, ("map",), multilabel=Multilabel((";",), ("b", "label"))
)
KINDS = st.sampled_from([TASK, SCORED, SETS, FLAGS])
ROW = {"a": "x y", "b": "z", "label": 1, "more": {"n": [1, 2]}}


def read(path: Path, task: Task) -> None:
    """Rows that are read can be shown, whatever they hold."""
    refused_or_read(lambda: json.dumps(read_rows(path, task).to_list()), path.parent)


@bounded
@given(data=st.data(), task=KINDS)
def test_jsonl(data: st.DataObject, task: Task, tmp_path_factory: Any) -> None:
    lines = [json.dumps(ROW)] * 3
    row = ROW | {"label": data.draw(st.sampled_from([1, ["no", "yes"], [0, 1], "no;yes", []]))}
    lines[data.draw(st.integers(0, 2))] = data.draw(damaged_json(row))
    if data.draw(st.integers(0, 9)) == 0:
        lines += [json.dumps({f"c{i}": "" for i in range(900)}), *["{}"] * 200_000]
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    _try(data, content, "rows.jsonl", task, tmp_path_factory)


CELL = st.sampled_from(
    [
        "a",
        "",
        "0",
        "1",
        "no;yes",
        "1;0;;",
        "nan",
        "1e999",
        '"',
        '""',
        '"a\nb"',
        "é",
        "9" * 400,
        "\0",
    ]
)


@bounded
@given(data=st.data(), task=KINDS)
def test_csv(data: st.DataObject, task: Task, tmp_path_factory: Any) -> None:
    rows = data.draw(st.lists(st.lists(CELL, min_size=1, max_size=4), max_size=4))
    heads = [["a", "b", "label"], ["a", "a"], ["a", "b"], [""], ["é", "a"]]
    wide = [["", "\n" + "a," * 50_000], ['"\n"', "a," * 50_000]]
    head = data.draw(st.sampled_from([*heads, *wide]))
    ends = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    content = ends.join(",".join(row) for row in [head, ["x", "y", "1"][: len(head)], *rows])
    _try(data, content.encode(), "rows.csv", task, tmp_path_factory)


_COLUMNS: list[pa.Array] = [
    pa.array(["x", "y"]), pa.array([1, 0]), pa.array([None, "x"]), pa.array([[["x"]], []]),
    pa.array([b"\xff", b""]), pa.array(["x", "x"]).dictionary_encode(),
    pa.array([1.5, float("nan")]), pa.array([b"\xff\xfe", b"x"]).view(pa.string()),
    pa.array([{"a": 1}, None]), pa.nulls(2), pa.array([{"a": "x" * 10**6}] * 2),
    pa.array([2**63, 1], pa.uint64()), pa.array([True, False]),
    pa.array([0, 1], pa.timestamp("ns")), pa.array([["no", "yes"], []]), pa.array([[0, 1], None]),
    pa.array([[2**40], [-1]]), pa.array([[float("nan")], [0.5]]), pa.array([[b"\xff"], []]),
]  # fmt: skip


@bounded
@given(data=st.data(), task=KINDS)
def test_parquet(data: st.DataObject, task: Task, tmp_path_factory: Any) -> None:
    names = data.draw(st.sampled_from([["a", "b", "label"], ["a", "b"], ["label"], ["a", "", "x"]]))
    table = pa.Table.from_arrays([data.draw(st.sampled_from(_COLUMNS)) for _ in names], names=names)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression=data.draw(st.sampled_from(["none", "snappy", "zstd"])))
    _try(data, sink.getvalue().to_pybytes(), "rows.parquet", task, tmp_path_factory)


def _try(data: st.DataObject, content: bytes, name: str, task: Task, factory: Any) -> None:
    if data.draw(st.booleans()):
        content = data.draw(damaged_bytes(content))
    if not name.endswith(".parquet") and data.draw(st.integers(0, 3)) == 0:
        content, name = gzip.compress(content, 1), f"{name}.gz"
        if data.draw(st.booleans()):
            content = data.draw(damaged_bytes(content))
    path = fresh(factory) / name
    path.write_bytes(content)
    read(path, task)
