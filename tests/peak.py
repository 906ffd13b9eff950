"""The most memory that this process has had since a mark.

What the system keeps for a process's whole life (`ru_maxrss`) says nothing after an earlier peak.
"""

from __future__ import annotations

import re
from pathlib import Path


def mark() -> int:
    """Forget earlier peaks; return the memory now, in KB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """The most memory since the mark, in KB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])
