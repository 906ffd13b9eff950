"""What of the GPU tests runs on a CPU in CI."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave bf16 on a CPU to `make test-long`: many CPUs emulate it, three times slower than fp32.

    Tests of the CPU itself are elsewhere; here it shows that the tests run.
    """
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if params.get("device") == "cpu" and params.get("precision") == "bf16":
            item.add_marker("long")
            item.add_marker("rare")
