"""Private parts of Ray that starting and ending it uses, all of them in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_ray_compat.py fails where Ray changes one. Ray's switches in the environment are
in cluster/settings.py, since some must be set before Ray is imported.
"""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, worker
from ray.job_config import JobConfig

import tinyattn
from cluster.settings import LOOPBACK


class OwnCodeFirst(JobConfig):
    """Job config whose workers import from the folder of the running tinyattn first.

    By default workers put the folder of the driver's script and its working folder first on
    `sys.path`. A user's file there called `orchestrator.py` or `cluster.py` would be imported in
    place of this project's code.

    Workers put the job's `_py_driver_sys_path` first. They leave the two folders out if
    `_runtime_env_has_working_dir` returns True, which has no other effect. (ray 2.60)
    """

    def __init__(self) -> None:
        super().__init__(_py_driver_sys_path=[str(Path(tinyattn.__file__).parents[1])])

    def _runtime_env_has_working_dir(self) -> bool:
        return True


def start_on_loopback(folder: Path, num_cpus: int | None, num_gpus: int | None) -> None:
    """Start a Ray of this machine alone and connect to it.

    `_node_ip_address` and `_temp_dir` have no public names in `ray.init`. By default Ray listens on
    the address that other machines use, and its folder is open to all accounts; `folder` is
    private. (ray 2.60)
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
    """Connect to the Ray at an address, as a driver on the node with that same IP address.

    Without it Ray would choose one of the machine's addresses, perhaps another one.

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
    """Make `ray.shutdown` kill the processes that `ray.init` started, which block SIGTERM.

    `worker._global_node` has them in `all_processes`, and ends each by `terminate()`. (ray 2.60)
    """
    node: Any = worker._global_node
    for infos in node.all_processes.values() if node else ():
        for info in infos:
            info.process.terminate = info.process.kill


def shut_down() -> None:
    """Disconnect from Ray, and handle SIGTERM as Python was told to.

    Ray's core resets the system's handler to the default, which ends a process without a word, and
    Python does not know of it. (ray 2.60)
    """
    ray.shutdown()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def read_settings_again() -> None:
    """Make Ray read the environment again, which it read when it was imported.

    Three places cache values from it: `ENABLE_RAY_CLUSTER` (see LOOPBACK), the settings of Ray's
    core, and the token. (ray 2.60)
    """
    (name,) = LOOPBACK
    elsewhere = ray_constants.IS_WINDOWS_OR_OSX
    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(name, not elsewhere)
    ray._raylet.Config.initialize("")  # type: ignore[attr-defined]
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]
