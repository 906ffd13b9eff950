"""Verbs on clusters: start, status and end of their Ray, and Kubernetes manifests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import echo, next_command, remember
from tinyattn.errors import UsageError

if TYPE_CHECKING:
    from cluster.kubernetes import KubernetesCluster
    from cluster.rack import RackCluster


@click.group()
def cluster() -> None:
    """Start, look at or end the Ray of a cluster file; type these on its head."""


_FILE = click.argument("file", type=click.Path(path_type=Path), callback=remember("--on"))


@cluster.command("up")
@_FILE
def up(file: Path) -> None:
    """Start Ray on every machine of the file on which it does not run already."""
    machines = _machines(file)
    machines.up()

    from cluster.join import wait_for_all
    from cluster.kubernetes import KubernetesCluster, exec_words

    if isinstance(machines, KubernetesCluster):
        click.echo(f"next: {exec_words(machines.cluster)}, there: tinyattn sweep run NAME")
        return
    wait_for_all(machines.cluster, echo)
    echo(f"next: {next_command('tinyattn sweep run NAME')}")


@cluster.command("status")
@_FILE
def status(file: Path) -> None:
    """Say on which machines Ray runs; exit code 1 if it does not on one of them."""
    from cluster.kubernetes import KubernetesCluster

    machines = _machines(file)
    if isinstance(machines, KubernetesCluster):
        state = machines.state()
        click.echo(f"{machines.cluster.name}: {state or 'down'}")
        sys.exit(0 if state == "ready" else 1)
    answers = machines.status()
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
    _machines(file).down()


@cluster.command("manifests")
@_FILE
def show_manifests(file: Path) -> None:
    """Print a Kubernetes cluster's manifests, for `kubectl apply -f -`."""
    import yaml

    from cluster.config import Kubernetes, read_cluster
    from cluster.kubernetes import manifests

    found = read_cluster(file)
    if not isinstance(found.launch, Kubernetes):
        raise UsageError(f"{file} is a {found.launch.type}; only kubernetes has manifests")
    click.echo(yaml.safe_dump_all(manifests(found), sort_keys=False), nl=False)


def _machines(file: Path) -> RackCluster | KubernetesCluster:
    from cluster.config import Kubernetes, Slurm, read_cluster
    from cluster.kubernetes import KubernetesCluster
    from cluster.rack import RackCluster
    from cluster.slurm import SlurmCluster

    found = read_cluster(file)
    if isinstance(found.launch, Kubernetes):
        return KubernetesCluster(found, echo)
    kind = SlurmCluster if isinstance(found.launch, Slurm) else RackCluster
    return kind(found, echo)
