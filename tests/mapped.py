"""Whether memory is pages of a file, of which the kernel keeps one copy for everybody."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

needs_maps = pytest.mark.skipif(sys.platform != "linux", reason="/proc shows what is mapped")


def mapped_from(file: Path, address: int) -> bool:
    """Whether this process has pages of that file at that address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split(" ", 1)[0].split("-"))
        if first <= address < last:
            return line.endswith(str(file))
    return False
