"""SlurmCluster: Ray's head on this machine, and one Slurm job whose nodes join it."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.agents import Answer
from cluster.config import Cluster, Node, Slurm
from cluster.rack import RackCluster
from cluster.services import state_folder, write_private
from tinyattn.errors import TinyAttnError, UsageError

OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip
"""States of a job that has ended."""


class SlurmCluster(RackCluster):
    """A rack whose only machine is the head; a Slurm job brings the nodes."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        super().__init__(cluster, say)
        assert isinstance(cluster.launch, Slurm)
        assert cluster.folder is not None, "the cluster file was checked"
        self.launch, self._storage = cluster.launch, cluster.folder
        self._job_file = state_folder(cluster.name) / "slurm.json"

    def up(self) -> None:
        """Start the head and submit the job, unless they are there already.

        Raises:
            UsageError: Slurm is not installed here.
            TinyAttnError: Slurm refuses the job.
        """
        job = self._job()
        super().up()
        if job is not None:
            self.say(f"job {job}: {self._state(job)}")
            return
        job = self._submit()
        write_private(self._job_file, json.dumps({"job": job}))
        self.say(f"job {job}: submitted, {self.launch.nodes} nodes")

    def status(self) -> list[Answer]:
        """Return the answer of the head, and the job's state as if it were a machine."""
        job = self._job()
        node = Node(host=f"job-{job or 'none'}")
        state = self._state(job) if job else "no job is in the queue"
        return [*super().status(), Answer(node, {"alive": state == "RUNNING", "log": [state]})]

    def down(self) -> None:
        """Cancel the job and end the head."""
        if (job := self._job()) is not None:
            self._call("scancel", job)
            self.say(f"job {job}: cancelled")
        self._job_file.unlink(missing_ok=True)
        for left in self._storage.glob(f".{self.cluster.name}-*/node.json"):
            left.unlink(missing_ok=True)  # they hold the token
        super().down()

    def _submit(self) -> str:
        folder = self._storage / f".{self.cluster.name}-{secrets.token_hex(4)}"
        folder.mkdir(parents=True, mode=0o700)
        request = folder / "node.json"  # for all nodes; private, since it holds the token
        write_private(request, json.dumps(self._request()))
        python = self.cluster.environment.python or Path(sys.executable)
        join = ["srun", str(python), "-P", "-m", "cluster.node", "join", str(request)]
        script = f"#!/bin/sh\nexec {shlex.join(join)}\n"
        words = [f"--job-name=tinyattn-{self.cluster.name}", f"--nodes={self.launch.nodes}"]
        words += ["--ntasks-per-node=1", f"--output={folder}/job-%j.log"]
        words += [f"--{key}={value}" for key, value in self.launch.options.items()]
        return self._call("sbatch", "--parsable", *words, script=script).split(";")[0].strip()

    def _request(self) -> dict[str, Any]:
        """Return the request for the job's agents; each finds its own address and size."""
        head = self.request_of(self.cluster.head, self.token())
        return {**head, "is_head": False, "mlflow": None}

    def _job(self) -> str | None:
        """Return the id of the job that `up` submitted; None: there is none, or it has ended."""
        try:
            job = str(json.loads(self._job_file.read_text())["job"])
        except (OSError, ValueError, KeyError):
            return None
        return None if self._state(job) in (*OVER, "") else job

    def _state(self, job: str) -> str:
        """Return a job's state; empty if Slurm does not know it any more."""
        try:
            return self._call("squeue", "-h", "-j", job, "-o", "%T").strip()
        except TinyAttnError as error:
            if "Invalid job id" in str(error):
                return ""
            raise

    def _call(self, *words: str, script: str | None = None) -> str:
        try:
            done = subprocess.run(words, input=script, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise UsageError(
                f"{words[0]} is not on this machine; type this where Slurm takes jobs"
            ) from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise TinyAttnError(f"{words[0]} failed: {last}; see launch.options")
        return done.stdout
