"""What is patched of datasets, all of it in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_datasets_compat.py fails where datasets changes one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import datasets


@contextlib.contextmanager
def hub_left_alone(wanted: bool) -> Iterator[None]:
    """Within the block `datasets` uses its cache alone if that is wanted; else it does as before.

    `load_dataset` has no argument for it, and `datasets.config` reads `HF_HUB_OFFLINE` from the
    environment when it is imported. (datasets 4.8, 5.2)
    """
    was_offline = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = was_offline or wanted
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline
