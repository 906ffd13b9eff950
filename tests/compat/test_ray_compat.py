"""What this project uses of Ray beyond its public interface is there, and does the same."""

from __future__ import annotations

import inspect
import ipaddress
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import tune
from ray._private import worker
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.air.execution._internal.tracked_actor_task import TrackedActorTask
from ray.tune import constants

import tinyattn
from cluster.local import this_machine
from orchestrator.execution import ray_compat
from orchestrator.execution.ray_compat import address_in

pytestmark = pytest.mark.slow


ENDED_AFTER_RAY = """
import os, signal, time
from cluster.local import this_machine
from orchestrator.driver.signals import end_by_exception
end_by_exception()
with this_machine(num_cpus=1):
    pass
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
except KeyboardInterrupt:
    print("asked to end")
"""


def test_sigterm_is_handled_after_ray_as_before() -> None:
    """As while the methods of a comparison are judged: Ray's core leaves the default handler."""
    words = [sys.executable, "-c", ENDED_AFTER_RAY]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "asked to end\n", done.stderr


@ray.remote(num_cpus=0)
class Idle:
    """An actor that can answer, fail or die."""

    def less(self, a: int, b: int) -> int:
        return a - b

    def fail(self) -> None:
        raise RuntimeError("on purpose")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def started_ray() -> Iterator[None]:
    with this_machine(num_cpus=1):
        yield


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tune as a sweep has it; afterwards as it was."""
    for name in ("TUNE_MAX_PENDING_TRIALS_PG", "TUNE_DISABLE_SIGINT_HANDLER"):
        monkeypatch.setenv(name, "")
    for module in (ray_compat.actor_manager, ray_compat.tune_controller):
        monkeypatch.setattr(module, "RayActorError", ray.exceptions.RayActorError)
    before = logging.getLogger("ray.tune").level
    ray_compat.prepare_tune()
    yield
    logging.getLogger("ray.tune").setLevel(before)


@pytest.mark.parametrize("kind", ray_compat.WORKER_ENDS)
def test_tune_hears_of_every_end_of_a_worker(
    prepared: None, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune by itself raises RuntimeError on all but the first, and the sweep would end with it."""
    heard: list[BaseException] = []
    manager = RayActorManager(SimpleNamespace())
    monkeypatch.setattr(manager, "_cleanup_actor", lambda tracked_actor: None)
    actor = TrackedActor(actor_id=1, on_error=lambda actor, error: heard.append(error))
    ended = kind.__new__(kind)
    manager._actor_task_failed(TrackedActorTask(tracked_actor=actor), ended)
    assert heard == [ended]


def test_tune_knows_the_switches_that_are_set(prepared: None) -> None:
    known = inspect.getsource(constants)
    for name, value in (("MAX_PENDING_TRIALS_PG", "10000"), ("DISABLE_SIGINT_HANDLER", "1")):
        assert os.environ[f"TUNE_{name}"] == value
        assert f"TUNE_{name}" in known


def test_a_handle_finds_a_method_by_the_name_that_it_has_in_its_class(started_ray: None) -> None:
    assert ray.get(ray_compat.call(Idle.remote(), Idle.less, 5, b=3)) == 5 - 3


def test_ray_says_by_its_id_that_an_actor_has_died(started_ray: None) -> None:
    actor = Idle.remote()
    name = ray_compat.actor_id(actor)
    ray.get(actor.__ray_ready__.remote())
    assert not ray_compat.is_dead(name)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.die.remote())
    assert ray_compat.is_dead(name)


def test_ray_names_the_machine_of_an_actor_that_fails_and_of_one_that_dies(
    started_ray: None,
) -> None:
    actor = Idle.remote()
    with pytest.raises(RuntimeError) as failed:
        ray.get(actor.fail.remote())
    with pytest.raises(ray.exceptions.RayActorError) as died:
        ray.get(actor.die.remote())
    assert address_in(str(failed.value)) == "127.0.0.1"
    assert address_in(str(died.value)) == "127.0.0.1"


def test_the_innermost_machine_is_the_one_that_failed() -> None:
    """The trial's supervisor is on one machine, the rank that died on another."""
    outer = "ray::SweepTrainable.train() (pid=7, ip=10.0.0.1, actor_id=0a, repr=x)\n"
    nested = outer + "ActorDiedError: it died.\n\tpid: 9\n\tip: 10.0.0.2\nThe actor is dead"
    assert address_in(nested) == "10.0.0.2"
    assert address_in(outer) == "10.0.0.1"
    assert address_in("(pid=7, ip=fd00::2, actor_id=0a)") == "fd00::2"
    assert address_in("Memory on the node (IP: 10.0.0.5, ID: 0a) was 4.55GB used") == "10.0.0.5"
    assert address_in("a trip: nothing") is None


LOST = """
import json, os, signal, sys, time
from cluster.settings import set_before_ray
set_before_ray()
import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from cluster.local import this_machine
from orchestrator.execution.ray_compat import last_error, prepare_tune, worker_end
from orchestrator.execution.tune_adapters import lost_worker

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

@ray.remote(num_cpus=0)
class Rank:
    die = die

class Ending(tune.Trainable):
    def setup(self, config):
        self.kind = config["kind"]

    def step(self):
        match self.kind:
            case "died":
                die()
            case "passed on":  # as by the actor that supervises the ranks of a trial
                ray.get(Rank.remote().die.remote())
            case "crashed":  # raised on as a WorkerCrashedError
                ray.get(ray.remote(num_cpus=0, max_retries=0)(die).remote())
            case "raised":
                raise RuntimeError("on purpose")
        time.sleep(60)  # until its memory is wanted
        return {"done": True}

class Listening(FIFOScheduler):
    def on_trial_error(self, controller, trial):
        error = last_error(trial)
        lost = lost_worker(error)
        print(json.dumps([trial.config["kind"], worker_end(error).name, lost.outcome.value,
                          lost.node, lost.reason, error]), flush=True)

kinds = sys.argv[2:]
with this_machine(num_cpus=2):
    prepare_tune()
    tune.Tuner(
        Ending, param_space={"kind": tune.grid_search(kinds)},
        tune_config=tune.TuneConfig(scheduler=Listening()),
        run_config=tune.RunConfig(storage_path=sys.argv[1], verbose=0),
    ).fit()
"""


def lost(folder: Path, *kinds: str, **environment: str) -> dict[str, list[str]]:
    """{kind: [end, outcome, address, reason, error]} of workers that a real Tune has lost."""
    done = subprocess.run(
        [sys.executable, "-c", LOST, str(folder), *kinds],
        capture_output=True, text=True, timeout=280, check=False, env=os.environ | environment,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert done.returncode == 0, done.stderr
    return {kind: found for kind, *found in map(json.loads, lines)}


@pytest.mark.long
@pytest.mark.rare
def test_a_worker_that_dies_is_told_from_one_whose_code_raises(tmp_path: Path) -> None:
    """And none of them ends Tune, which knows the first two alone by itself."""
    found = lost(tmp_path, "died", "passed on", "crashed", "raised")
    assert found["crashed"][1:3] == ["failed", "127.0.0.1"]
    for kind in ("died", "passed on"):
        end, outcome, node, reason, error = found[kind]
        assert (end, outcome, node) == ("DIED", "failed", "127.0.0.1"), error
        assert "died each time" in reason
    end, outcome, node, reason, error = found["raised"]
    assert (end, outcome, node) == ("RAISED", "failed", "127.0.0.1"), error
    assert reason == error  # a user sees where it was raised
    assert error.endswith("RuntimeError: on purpose")
    assert "Failure #" not in error
    assert "\x1b" not in error


@pytest.mark.long
@pytest.mark.rare
def test_a_worker_that_ray_kills_for_its_memory_is_told(tmp_path: Path) -> None:
    """The monitor takes the machine to be full as soon as anything runs on it."""
    environment = {"RAY_memory_monitor_refresh_ms": "50", "RAY_memory_usage_threshold": "0.001"}
    end, outcome, node, reason, error = lost(tmp_path, "killed", **environment)["killed"]
    assert (end, outcome, node) == ("KILLED_FOR_MEMORY", "out_of_memory", "127.0.0.1"), error
    assert "killed when the machine ran low on memory" in reason


def test_an_error_that_could_not_be_kept_is_empty(tmp_path: Path) -> None:
    for file in (None, str(tmp_path / "missing")):
        trial: Any = SimpleNamespace(error_file=file)
        assert ray_compat.last_error(trial) == ""


def test_tunes_own_answer_of_a_trainable_that_saves_has_the_same_parts() -> None:
    """`Trainable.save` makes such an answer where it is not overridden."""
    own = vars(sys.modules[tune.Trainable.__module__])["_TrainingResult"]
    assert vars(own(checkpoint=None, metrics={})) == vars(ray_compat.nothing_saved())


def test_the_key_value_store_keeps_values_by_namespace(started_ray: None) -> None:
    store, other = ray_compat.KeyValueStore(b"a"), ray_compat.KeyValueStore(b"b")
    store.put(b"x/1", b"first")
    store.put(b"x/1", "second")
    store.put(b"y/1", b"kept")
    other.put(b"x/1", b"of another")
    assert store.get(b"x/1") == b"second"
    store.remove_all(b"x/")
    assert not store.has(b"x/1")
    assert store.has(b"y/1")
    assert other.get(b"x/1") == b"of another"


def test_ray_of_this_machine_is_on_loopback_and_keeps_its_processes(started_ray: None) -> None:
    """Elsewhere others would reach it; and its processes, which are deaf to SIGTERM, would stay."""
    assert ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback
    started = [info.process for own in worker._global_node.all_processes.values() for info in own]
    assert {"terminate", "kill"} <= set(dir(started[0]))


SETTINGS = """
import json, os
import ray
from ray._private import services
from cluster.ray_compat import read_settings_again
from cluster.settings import LOOPBACK
Loader = ray._raylet.AuthenticationTokenLoader

def now():
    token = Loader.instance().get_raw_token() if Loader.instance().has_token() else None
    return [services.get_node_ip_address(), ray._raylet.Config.health_check_period_ms(), token]

before = now()
os.environ.update({**LOOPBACK, "RAY_health_check_period_ms": "1234",
                   "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0a" * 32})
unread = now()
read_settings_again()
print(json.dumps([before, unread, now()]))
"""


def test_ray_reads_its_switches_and_token_again_from_the_environment() -> None:
    """It has been imported before, and goes by what it read then."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS],
        capture_output=True, text=True, timeout=280, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, unread, again = json.loads(done.stdout.splitlines()[-1])
    assert before == unread  # or Ray need not be told
    assert before[1:] == [3000, None]
    assert again == ["127.0.0.1", 1234, "0a" * 32]


OWN_CODE = """
import sys
import ray
from cluster.local import this_machine
from cluster.settings import set_before_ray

@ray.remote(num_cpus=0)
def imported():
    import cluster, orchestrator
    return [orchestrator.__file__, cluster.__file__, sys.path[0]]

set_before_ray()
with this_machine(num_cpus=1):
    print(*ray.get(imported.remote()), sep="\\n")
"""


@pytest.mark.long
@pytest.mark.rare
def test_workers_import_this_project_though_files_beside_the_script_have_its_names(
    tmp_path: Path,
) -> None:
    root = Path(tinyattn.__file__).parents[1]
    script, folder = tmp_path / "script" / "run.py", tmp_path / "working"
    for place in (script.parent, folder):
        place.mkdir()
        for name in ("orchestrator", "cluster"):
            (place / f"{name}.py").write_text("")
    script.write_text(f"import sys\nsys.path.insert(0, {str(root)!r})\n{OWN_CODE}")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True, text=True, timeout=280, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    orchestrators, clusters, first = done.stdout.splitlines()[-3:]
    assert Path(orchestrators).parent == root / "orchestrator"
    assert Path(clusters).parent == root / "cluster"
    assert Path(first) == root
