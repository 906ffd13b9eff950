"""Verbs on clusters: their machines become one Ray, and stop being one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cluster.rack import RackCluster


@click.group()
def cluster() -> None:
    """Start, look at or end the Ray of a cluster file; type these on its head."""


_FILE = click.argument("file", type=click.Path(path_type=Path))


@cluster.command("up")
@_FILE
def up(file: Path) -> None:
    """Have Ray running on every machine of the file; what runs already is left alone."""
    rack = _rack(file)
    rack.up()

    from cluster.join import wait_for_all

    wait_for_all(rack.cluster, click.echo)
    click.echo(f"next: tinyattn sweep run NAME --on {file}")


@cluster.command("status")
@_FILE
def status(file: Path) -> None:
    """Say which machines run; exit code 1 where one does not."""
    answers = _rack(file).status()
    for answer in answers:
        state = "up" if answer.said.get("alive") else "down"
        click.echo(f"{answer.node.host}: {answer.fault or state}")
        if state == "down":
            click.echo("".join(f"    {line}\n" for line in answer.said.get("log", [])), nl=False)
    if not all(answer.said.get("alive") for answer in answers):
        sys.exit(1)


@cluster.command("down")
@_FILE
def down(file: Path) -> None:
    """End what `up` started on the machines of the file, and nothing else."""
    _rack(file).down()


def _rack(file: Path) -> RackCluster:
    from cluster.config import Slurm, read_cluster
    from cluster.rack import RackCluster
    from cluster.slurm import SlurmCluster

    cluster = read_cluster(file)
    kind = SlurmCluster if isinstance(cluster.launch, Slurm) else RackCluster
    return kind(cluster, click.echo)
