"""The sweep files that ship with the package, found by short name, as in `glue/rte`.

`glue/TASK` is the paper's grid on roberta-large, `glue/TASK-literal` the same with the adapter as
the paper writes it, `glue/TASK-wide` a wider continuous space, `-base` the same on roberta-base;
`e2e` generates texts with gpt2-medium.
Files in folders that begin with an underscore are parts that others extend.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from tinyattn.errors import ConfigError, did_you_mean

GLUE = ("sst2", "cola", "mnli", "qqp", "rte", "mrpc", "qnli", "stsb")
"""The eight GLUE tasks of the paper's tables."""

SUITES = {
    "glue": [f"glue/{task}" for task in GLUE],
    "glue-literal": [f"glue/{task}-literal" for task in GLUE],
    "glue-base": [f"glue/{task}-base" for task in GLUE],
}
"""Sweeps that make one leaderboard together, by the name of the suite."""


def _root() -> Path:
    return Path(str(files(__name__)))


def names() -> list[str]:
    """Return the short names of all sweep files, in alphabetical order."""
    paths = (path.relative_to(_root()) for path in _root().rglob("*.yaml"))
    return sorted(p.with_suffix("").as_posix() for p in paths if not p.parts[0].startswith("_"))


def find(short: str) -> Path:
    """Return the file of a short name.

    Raises:
        ConfigError: no sweep has this name.
    """
    known = names()
    if short in SUITES:
        raise ConfigError(f"'{short}' is a suite, allowed here is a sweep; name one of it")
    if short not in known:
        raise ConfigError(
            f"'{short}' is no sweep{did_you_mean(short, [*SUITES, *known])}; allowed are the path "
            f"of a .yaml file, or one of {', '.join([*SUITES, *known])}"
        )
    return _root() / f"{short}.yaml"


def base(name: str) -> Path:
    """Return a file that others extend, by the name it has without its folder."""
    return _root() / "_base" / f"{name}.yaml"


def suite(name: str) -> list[str]:
    """Return the short names of the sweeps of a suite, as in `glue`.

    Raises:
        ConfigError: no suite has this name.
    """
    if name not in SUITES:
        raise ConfigError(
            f"'{name}' is no suite{did_you_mean(name, SUITES)}; allowed are {', '.join(SUITES)}"
        )
    return list(SUITES[name])
