"""A rack of namespaced machines with a cluster that is up, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import Bench, can_make_machines
from tiny_plm import save_tiny_plm

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are `cluster` tests."""
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_plm(tmp_path_factory.mktemp("plm") / "tiny"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Three machines that are on; no Ray yet."""
    if not can_make_machines():
        pytest.skip("needs root, iproute2 and openssh-server")
    bench = Bench(tmp_path_factory.mktemp("bench"))
    with bench.running(3):
        yield bench
