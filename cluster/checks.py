"""Checks of the answers of a cluster's machines; their errors name the machines at fault."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.agents import Answer
from tinyattn.errors import StorageError, TinyAttnError, UsageError

MOST_SKEW = 60.0
"""Largest difference between clocks, in seconds: MLflow's times and Ray's tokens depend on them."""


def refuse_faults(answers: Sequence[Answer]) -> None:
    """Raise UsageError if a machine has a fault; the message names all that have."""
    lost = [f"  {answer.node.host}: {answer.fault}" for answer in answers if answer.fault]
    if lost:
        raise UsageError(
            "these machines do not answer as they should; mend them, or leave them out of the "
            "cluster file:\n" + "\n".join(lost)
        )


def refuse_others(answers: Sequence[Answer], name: str) -> None:
    """Raise UsageError if another cluster of this name runs on a machine."""
    others = [answer.node.host for answer in answers if answer.said["state"] == "other"]
    if others:
        raise UsageError(
            f"{', '.join(others)}: a cluster called '{name}' runs there that was started from "
            "another file or head; give this one another name, or end that one by a `cluster down` "
            "with its own file"
        )


def refuse_storage(answers: Sequence[Answer], storage: Path) -> None:
    """Raise StorageError if a machine does not see the head's storage folder."""
    faults = [f"  {a.node.host}: it {a.said['storage']}" for a in answers if a.said["storage"]]
    if faults:
        raise StorageError(
            f"{storage} is not shared by all machines; mount it there, or choose another:\n"
            + "\n".join(faults)
        )


def refuse_to_change(others: Sequence[Answer]) -> None:
    """Raise UsageError if Ray runs in an environment that installing would change."""
    used = [a.node.host for a in others if a.said.get("state", "down") != "down"]
    if used:
        raise UsageError(
            f"{', '.join(used)}: a cluster runs there with other versions than the head's; end it "
            "by `tinyattn cluster down`, then `up` installs the head's"
        )


def refuse_failed(answers: Sequence[Answer]) -> None:
    """Raise TinyAttnError if `environment.install` failed on a machine."""
    failed = [f"  {answer.node.host}: {answer.fault}" for answer in answers if answer.fault]
    if failed:
        raise TinyAttnError(
            "environment.install failed on these machines; no cluster was started:\n"
            + "\n".join(failed)
        )


def refuse_versions(answers: Sequence[Answer]) -> None:
    """Raise UsageError if an environment differs from the head's, whose answer is the first."""
    head = answers[0].said
    faults = [
        f"  {answer.node.host}: {difference}"
        for answer in answers[1:]
        for difference in differences(answer.said, head)
    ]
    if faults:
        raise UsageError(
            "these machines have other versions than the head; install the same tinyattn from the "
            "same constraints.txt everywhere, or see environment.install:\n" + "\n".join(faults)
        )


def differences(said: Mapping[str, Any], head: Mapping[str, Any]) -> list[str]:
    """Return the differences between a machine's environment and the head's, one text each."""
    found = []
    if said["python"].split(".")[:2] != head["python"].split(".")[:2]:
        found.append(f"Python {said['python']}, not {head['python']}")
    if (code := said.get("code")) != (here := head.get("code")):  # many commits share a version
        found.append(f"tinyattn's code {code}, not {here}")
    return found + [
        f"{package} {said['versions'][package]}, not {here}"
        for package, here in head["versions"].items()
        if said["versions"][package] != here
    ]


def refuse_clocks(answers: Sequence[Answer]) -> None:
    """Raise UsageError if a machine's clock differs from this one's by more than MOST_SKEW."""
    now = time.time()
    skews = {answer.node.host: answer.said["time"] - now for answer in answers}
    faults = [f"  {host}: {skew:+.0f} s" for host, skew in skews.items() if abs(skew) > MOST_SKEW]
    if faults:
        raise UsageError(
            f"clocks differ by more than {MOST_SKEW:.0f} s from the head's; set them (ntp):\n"
            + "\n".join(faults)
        )
