"""KubernetesCluster: KubeRay manifests of a cluster, applied and deleted by kubectl."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import yaml

from cluster.config import Cluster, Kubernetes, Workers
from cluster.services import HEALTH, QUIET, memory_labels
from tinyattn.errors import TinyAttnError, UsageError

FILE = "/etc/tinyattn/cluster.yaml"
"""Path of the cluster file in the pods."""
RUNS = "/var/lib/tinyattn"
"""Path of the claim in the head's pod, if the storage is an object store."""
HEAD = "ray-head"
"""Name of the head's container."""


def manifests(cluster: Cluster) -> list[dict[str, Any]]:
    """Return a cluster's Kubernetes objects: a ConfigMap with the cluster file, and a RayCluster.

    The storage claim is not among them, so deleting these objects keeps the sweeps.
    """
    launch = cluster.launch
    assert isinstance(launch, Kubernetes)
    name = f"tinyattn-{cluster.name}"
    about = {"name": name, "namespace": launch.namespace, "labels": {"app": name}}
    file = yaml.safe_dump(cluster.model_dump(mode="json", exclude_none=True) | {"mlflow": None})
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


def exec_words(cluster: Cluster) -> str:
    """Return the command that opens a shell in the head's pod."""
    assert isinstance(cluster.launch, Kubernetes)
    labels = f"ray.io/cluster=tinyattn-{cluster.name},ray.io/node-type=head"
    pod = f"$(kubectl get pod -n {cluster.launch.namespace} -l {labels} -o name)"
    return f"kubectl exec -it -n {cluster.launch.namespace} {pod} -- bash"


class KubernetesCluster:
    """A cluster of pods: `up`, `status` and `down` by kubectl."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        assert isinstance(cluster.launch, Kubernetes)
        self.cluster, self.launch, self.say = cluster, cluster.launch, say

    def up(self) -> None:
        """Apply the manifests; kubectl updates objects that exist."""
        text = yaml.safe_dump_all(manifests(self.cluster))
        self.say(self._kubectl("apply", "-f", "-", text=text).strip())

    def state(self) -> str:
        """Return the cluster's state as the operator reports it; empty if there is no cluster."""
        name = f"tinyattn-{self.cluster.name}"
        words = ("get", "raycluster", name, "--ignore-not-found", "-o", "jsonpath={.status.state}")
        return self._kubectl(*words).strip()

    def down(self) -> None:
        """Delete the objects of `up`; the claim with the sweeps stays."""
        label = f"app=tinyattn-{self.cluster.name}"
        self.say(self._kubectl("delete", "raycluster,configmap", "-l", label).strip())

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
