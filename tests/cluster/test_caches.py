"""Where a node keeps what torch and Triton compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import services
from orchestrator.execution import nodes

REQUEST = {
    "name": "r", "host": "10.0.0.2", "head": "10.0.0.1", "is_head": False, "port": 6379,
    "cpus": 1, "gpus": 0, "variables": {},
}  # fmt: skip
SESSIONS = Path("/tmp/own/ray")
CACHES = ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR")


def test_what_is_compiled_lies_on_the_nodes_own_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, home = tmp_path / "disk", tmp_path / "home"
    disk.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    for name in CACHES:
        monkeypatch.delenv(name, raising=False)

    def places() -> list[str]:
        environment = services.ray_service(REQUEST, SESSIONS).environment
        return [environment[name] for name in CACHES]

    assert all(Path(place).is_relative_to(disk) for place in places())
    assert len(set(places())) == 2
    (folder,) = disk.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)  # others may have put a library there, which would be run
    assert all(Path(place).is_relative_to(services.state_folder("r")) for place in places())
    folder.rmdir()
    folder.symlink_to(home)
    assert all(Path(place).is_relative_to(services.state_folder("r")) for place in places())


def test_what_the_node_or_the_cluster_file_says_of_caches_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/node")
    environment = services.ray_service(REQUEST, SESSIONS).environment
    assert "TRITON_CACHE_DIR" not in environment  # it is inherited
    variables = {"TORCH_EXTENSIONS_DIR": "/file"}
    settings = services.ray_service(REQUEST | {"variables": variables}, SESSIONS).environment
    assert settings["TORCH_EXTENSIONS_DIR"] == "/file"


def test_nodes_are_labelled_as_workers_look_for_it() -> None:
    """Neither package may import the other."""
    assert (services.GPU_MEMORY, services.MEMORY) == (nodes.GPU_MEMORY, nodes.MEMORY)
