"""KubernetesLauncher: KubeRay manifests of a cluster, applied and deleted by kubectl."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import yaml

from cluster.config import Cluster, Kubernetes, Workers
from cluster.launcher import Connection, Status
from cluster.services import memory_labels
from cluster.settings import HEALTH, QUIET
from tinyattn.errors import TinyAttnError, UsageError

FILE = "/etc/tinyattn/cluster.yaml"
"""Path of the cluster file in the pods."""
RUNS = "/var/lib/tinyattn"
"""Path of the claim in the head's pod, if the storage is an object store."""
HEAD = "ray-head"
"""Name of the head's container."""


def manifests(cluster: Cluster, launch: Kubernetes) -> list[dict[str, Any]]:
    """Return a cluster's Kubernetes objects: a ConfigMap with the cluster file, and a RayCluster.

    The storage claim is not among them, so deleting these objects keeps the sweeps.
    """
    name = f"tinyattn-{cluster.name}"
    about = {"name": name, "namespace": launch.namespace, "labels": {"app": name}}
    # JSON is YAML too, and quotes each text: PyYAML leaves out what YAML 1.2 needs, as for 08.
    content = cluster.model_dump(mode="json", exclude_none=True) | {"mlflow": None}
    file = json.dumps(content, indent=1)
    head = Workers(
        replicas=1,
        cpus=max(1, cluster.head.cpus or 1),
        gpus=cluster.head.gpus or 0,
        memory_gb=launch.head_memory_gb,
        gpu_memory_gb=cluster.head.gpu_memory_gb,
    )
    start = {"dashboard-host": "127.0.0.1", "num-cpus": str(cluster.head.cpus or 0)}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about,
         "data": {"cluster.yaml": file}},
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": about,
            "spec": {
                "rayVersion": version("ray"),
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "serviceType": "ClusterIP",
                    "rayStartParams": start,
                    "labels": _labels(head),  # the operator refuses them in rayStartParams
                    "template": _pod(cluster, launch, HEAD, head),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": f"workers-{number}",
                        "replicas": kind.replicas,
                        "minReplicas": kind.replicas,
                        "maxReplicas": kind.replicas,
                        "rayStartParams": {},
                        "labels": _labels(kind),
                        "template": _pod(cluster, launch, "ray-worker", kind),
                    }
                    for number, kind in enumerate(launch.workers, start=1)
                ],
            },
        },
    ]  # fmt: skip


def _pod(cluster: Cluster, launch: Kubernetes, name: str, size: Workers) -> dict[str, Any]:
    """Return a pod's template: image, size, settings, cluster file and claim.

    The claim is mounted as the storage folder in every pod; with an object store, as the runs
    folder in the head's pod.
    """
    amounts: dict[str, Any] = {"cpu": str(size.cpus), "memory": f"{size.memory_gb:g}G"}
    if size.gpus:
        amounts["nvidia.com/gpu"] = str(size.gpus)
    settings = {**QUIET, **HEALTH, **cluster.environment.variables, "TINYATTN_CLUSTER": FILE}
    mounts = [{"name": "file", "mountPath": FILE.rpartition("/")[0], "readOnly": True}]
    volumes: list[dict[str, Any]] = [
        {"name": "file", "configMap": {"name": f"tinyattn-{cluster.name}"}}
    ]
    if cluster.folder is not None or name == HEAD:
        mounts.append({"name": "storage", "mountPath": str(cluster.folder or RUNS)})
        claim = {"claimName": launch.claim}
        volumes.append({"name": "storage", "persistentVolumeClaim": claim})
    if cluster.folder is None:
        settings["TINYATTN_RUNS"] = f"{RUNS}/runs"
    container = {
        "name": name,
        "image": launch.image,
        "env": [{"name": key, "value": value} for key, value in settings.items()],
        "resources": {"limits": amounts, "requests": dict(amounts)},
        "volumeMounts": mounts,
    }
    if launch.secret is not None:
        container["envFrom"] = [{"secretRef": {"name": launch.secret}}]
    spec: dict[str, Any] = {"containers": [container], "volumes": volumes}
    if launch.service_account is not None:
        spec["serviceAccountName"] = launch.service_account
    return {"spec": spec}


def _labels(size: Workers) -> dict[str, str]:
    """Return Ray's labels with a pod's memory, as agents set them on a rack."""
    gpu_memory = (size.gpu_memory_gb or 0) * 1e9 if size.gpus else 0
    return memory_labels(int(gpu_memory / 2**20), int(size.memory_gb * 1e9 / 2**20))


class KubernetesLauncher:
    """Launcher of pods: `up`, `status` and `down` by kubectl."""

    def __init__(self, cluster: Cluster, launch: Kubernetes, say: Callable[[str], None]) -> None:
        self.cluster, self.launch, self.say = cluster, launch, say

    def up(self) -> None:
        """Apply the manifests; kubectl updates objects that exist."""
        text = yaml.safe_dump_all(self.manifests())
        self.say(self._kubectl("apply", "-f", "-", text=text).strip())

    def status(self) -> list[Status]:
        """Return the state of all pods together, as the operator reports it."""
        name = f"tinyattn-{self.cluster.name}"
        words = ("get", "raycluster", name, "--ignore-not-found", "-o", "jsonpath={.status.state}")
        state = self._kubectl(*words).strip()  # empty: there is no cluster
        return [Status(self.cluster.name, state == "ready", state or "down")]

    def down(self) -> None:
        """Delete the objects of `up`; the claim with the sweeps stays."""
        label = f"app=tinyattn-{self.cluster.name}"
        self.say(self._kubectl("delete", "raycluster,configmap", "-l", label).strip())

    def connection(self) -> Connection:
        """Return the Ray of the head's pod, in which this process must run.

        Raises:
            UsageError: it runs elsewhere.
        """
        if "RAY_AUTH_TOKEN" not in os.environ:  # which the operator sets in its pods
            raise UsageError(
                f"cluster '{self.cluster.name}' is in Kubernetes; type this in its head's pod: "
                f"{self.shell}"
            )
        return Connection("auto", {})

    @property
    def shell(self) -> str:
        """The command that opens a shell in the head's pod."""
        labels = f"ray.io/cluster=tinyattn-{self.cluster.name},ray.io/node-type=head"
        pod = f"$(kubectl get pod -n {self.launch.namespace} -l {labels} -o name)"
        return f"kubectl exec -it -n {self.launch.namespace} {pod} -- bash"

    def firewall(self) -> str:
        """Return that Kubernetes has its own means."""
        return "a NetworkPolicy of its namespace keeps others away"

    def manifests(self) -> list[dict[str, Any]]:
        """Return the cluster file as a ConfigMap, and a RayCluster."""
        return manifests(self.cluster, self.launch)

    def _kubectl(self, *words: str, text: str | None = None) -> str:
        command = ["kubectl", "-n", self.launch.namespace, *words]
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise UsageError(
                "kubectl is not on this machine; install it, or apply what `tinyattn cluster "
                "manifests` prints by other means"
            ) from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise TinyAttnError(f"kubectl {words[0]} failed: {last}")
        return done.stdout
