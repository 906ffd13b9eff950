"""What a driver leaves in the storage after it had every node try it; without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.config import Cluster
from cluster.join import refuse_unusable
from tinyattn.errors import StorageError
from tinyattn.files.object_store import Objects


@pytest.fixture(params=["folder", "objects"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    storage = tmp_path / "store"
    file = {
        "name": "c", "launch": {"type": "rack"}, "head": {"host": "h"},
        "storage": str(storage) if request.param == "folder" else storage.as_uri(),
    }  # fmt: skip
    return Cluster.model_validate(file)


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "store").iterdir())


def late_node(tmp_path: Path, faults: list[str]) -> Any:
    """A node that writes its answer and is not heard of again."""

    def tries(storage: str, word: str) -> list[str]:
        assert (tmp_path / "store" / word).exists()
        (tmp_path / "store" / f"{word}-0123").touch()
        (tmp_path / "store" / "of-others").touch()
        return faults

    return tries


@pytest.mark.parametrize("faults", [[], ["  10.0.0.2: gave no answer"]])
def test_nothing_stays_of_nodes_that_are_too_slow(
    cluster: Cluster, tmp_path: Path, faults: list[str]
) -> None:
    if faults:
        with pytest.raises(StorageError, match=r"10\.0\.0\.2: gave no answer"):
            refuse_unusable(cluster, late_node(tmp_path, faults))
    else:
        refuse_unusable(cluster, late_node(tmp_path, faults))
    assert left(tmp_path) == ["of-others"]


def test_a_word_that_cannot_be_removed_hides_no_fault(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*args: Any, **kwargs: Any) -> None:
        raise OSError(30, "Read-only file system") if cluster.folder else StorageError("Read-only")

    monkeypatch.setattr(Path, "unlink", refuses)
    monkeypatch.setattr(Objects, "remove", refuses)
    with pytest.raises(StorageError, match=r"10\.0\.0\.2: denied"):
        refuse_unusable(cluster, late_node(tmp_path, ["  10.0.0.2: denied"]))
    with pytest.raises(StorageError, match="Read-only"):
        refuse_unusable(cluster, late_node(tmp_path, []))
