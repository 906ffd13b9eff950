"""What starting and ending Ray uses beyond its public interface, all of it in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_ray_compat.py fails where Ray changes one. Ray's switches in the environment are
in cluster/settings.py, since some must be set before Ray is imported.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, worker
from ray.job_config import JobConfig

import tinyattn
from cluster.settings import LOOPBACK


class OwnCodeFirst(JobConfig):
    """The settings of a job whose workers search the folder that tinyattn was loaded from first,
    and the user's folders not at all.

    Ray has a driver's workers search the driver's script's folder and its working folder first.
    There a user may keep a file of any name, and one called `orchestrator.py` or `cluster.py` would
    take the place of this project's own code.

    Ray 2.60 leaves its own folders out where the job brings a working folder, and asks nothing else
    of the answer; what a job gives as `_py_driver_sys_path` its workers put first.
    """

    def __init__(self) -> None:
        super().__init__(_py_driver_sys_path=[str(Path(tinyattn.__file__).parents[1])])

    def _runtime_env_has_working_dir(self) -> bool:
        return True


def start_on_loopback(folder: Path, num_cpus: int | None, num_gpus: int | None) -> None:
    """Start a Ray of this machine alone and connect to it.

    `_node_ip_address` and `_temp_dir` have no public names in `ray.init`. Without the first Ray
    takes the address that other machines would use; `folder` is this account's, where Ray's own
    choice lets everybody in. (ray 2.60)
    """
    ray.init(
        address="local",
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(folder),
        job_config=OwnCodeFirst(),
    )


def connect(address: str) -> None:
    """Connect to the Ray at an address, as the node of that address: a machine may have several.

    `_node_ip_address` has no public name in `ray.init`. (ray 2.60)
    """
    ray.init(
        address=address,
        log_to_driver=False,
        logging_level=logging.ERROR,
        job_config=OwnCodeFirst(),
        _node_ip_address=address.rpartition(":")[0] or None,
    )


def end_by_killing() -> None:
    """Have `ray.shutdown` kill the processes that this one started: they are deaf to SIGTERM.

    The node that `ray.init` started is `worker._global_node`; it has them in `all_processes`, and
    ends each by `terminate()`. (ray 2.60)
    """
    node: Any = worker._global_node
    for infos in node.all_processes.values() if node else ():
        for info in infos:
            info.process.terminate = info.process.kill


def read_settings_again() -> None:
    """Have Ray read the environment again, which it has read when it was imported.

    Three places have kept what they read: whether a node may have others (`ENABLE_RAY_CLUSTER`, see
    LOOPBACK), the settings of its core, and the token. (ray 2.60)
    """
    (name,) = LOOPBACK
    elsewhere = ray_constants.IS_WINDOWS_OR_OSX
    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(name, not elsewhere)
    ray._raylet.Config.initialize("")  # type: ignore[attr-defined]
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]
