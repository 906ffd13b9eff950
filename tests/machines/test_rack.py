"""A rack of three machines with real sshd, real Ray and real cables that are pulled."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from machines import Bench, Machine, until, words
from sweep_truth import histories, untruths

from orchestrator.spec.outcome import Outcome
from orchestrator.state.event_log import read_event_log

TRIALS = 24
SIZES = {"max_length": 32, "max_train_rows": 400, "batch_size": 16, "epochs": 16}


def refused(bench: Bench, file: Path) -> str:
    done = bench.machines[0].run(*words("cluster", "up", file), check=False)
    assert done.returncode in (1, 2), done.stdout
    assert "Traceback" not in done.stderr
    assert not any("cluster.node" in line for line in processes(bench))
    return done.stderr


def processes(bench: Bench) -> list[str]:
    """Command lines on all machines."""
    return [
        line
        for machine in bench.machines
        for line in machine.run("ps", "axo", "args").stdout.splitlines()
    ]


def test_machines_that_do_not_fit_are_named_before_anything_starts(
    bench: Bench, tmp_path: Path
) -> None:
    for key in ("other", "other.pub"):
        (tmp_path / key).unlink(missing_ok=True)
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")]
    subprocess.run(make, check=True)
    launch = json.loads(bench.cluster_file().read_text())["launch"]
    second = bench.machines[1].address

    wrong_key = refused(
        bench, bench.cluster_file(launch={**launch, "key": str(tmp_path / "other")})
    )
    assert f"{second}: ssh failed: " in wrong_key
    assert "Permission denied" in wrong_key

    silent = json.loads(bench.cluster_file().read_text())["nodes"]
    silent[1]["host"] = f"{bench.net}.9"
    away = refused(bench, bench.cluster_file(nodes=silent))
    assert f"{bench.net}.9: ssh failed: " in away
    assert second not in away

    python = refused(bench, bench.cluster_file(environment={"python": "/usr/bin/python3"}))
    assert "/usr/bin/python3 with tinyattn is not there" in python

    unknown = {**launch, "known_hosts": str(tmp_path / "empty")}
    assert "Host key verification failed" in refused(bench, bench.cluster_file(launch=unknown))

    own = bench.folder / "own"
    own.mkdir()
    bench.machines[2].run("mount", "-t", "tmpfs", "tmpfs", own)
    unshared = refused(bench, bench.cluster_file(storage=str(own)))
    assert f"{bench.machines[2].address}: it is another folder than the head's" in unshared
    assert second not in unshared


def test_other_versions_are_named(bench: Bench) -> None:
    """A machine whose tinyattn says that it is another version."""
    folder = bench.folder / "old"
    info = folder / "tinyattn-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tinyattn\nVersion: 0.0.1\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    message = refused(bench, bench.cluster_file(environment={"python": str(python)}))
    assert f"{bench.machines[1].address}: tinyattn 0.0.1, not " in message


INSTALL = """
test "$(stat -c %a "$(dirname "$TINYATTN_CONSTRAINTS")")" = 700
{python} -m venv --without-pip /var/lib/tinyattn/env
echo {packages} > /var/lib/tinyattn/env/lib/python{minor}/site-packages/packages.pth
cp "$TINYATTN_CONSTRAINTS" /var/lib/tinyattn/lock
"""


def test_machines_without_the_environment_get_it(bench: Bench) -> None:
    """From this one's packages, which all machines of the bench see: nothing is downloaded."""
    command = INSTALL.format(
        python=sys.executable,
        packages=shlex.quote("\n".join(path for path in sys.path if path)),
        minor=".".join(map(str, sys.version_info[:2])),
    )
    places = {"python": "/var/lib/tinyattn/env/bin/python", "install": command}
    file = bench.cluster_file(name="env", port=6390, mlflow=None, environment=places)
    head, *others = bench.machines
    try:
        first = head.run(*words("cluster", "up", file)).stdout
        again = head.run(*words("cluster", "up", file)).stdout
        for machine in others:
            lines = [line for line in first.splitlines() if line.startswith(machine.address)]
            assert [line.split(": ")[1] for line in lines] == ["installing", "installed", "started"]
            lock = machine.run("cat", "/var/lib/tinyattn/lock").stdout.splitlines()
            assert f"ray=={version('ray')}" in lock
            running = machine.run("ps", "axo", "args").stdout
            assert "/var/lib/tinyattn/env/bin/python -P -m cluster.node keep" in running
        assert f"{head.address}: installing" not in first
        assert "installing" not in again
        assert again.count(": running") == len(bench.machines)
    finally:
        head.run(*words("cluster", "down", file))
        for machine in others:
            machine.run("rm", "-rf", "/var/lib/tinyattn/env", "/var/lib/tinyattn/lock")


def test_an_environment_that_cannot_be_made_is_told_with_its_last_words(bench: Bench) -> None:
    second, third = bench.machines[1:]
    command = f"echo begun\nif ip addr | grep -q {second.address}; then no-such-pip; fi\nexit 0"
    places = {"python": "/var/lib/tinyattn/env/bin/python", "install": command}
    said = refused(bench, bench.cluster_file(environment=places))
    assert "environment.install failed on these machines; no cluster was started:\n" in said
    assert f"{second.address}: it ended with 127; its last lines:\n      begun\n" in said
    assert "no-such-pip" in said
    assert third.address not in said
    third.run("sh", "-c", 'test -z "$(ls -d /tmp/tmp.*/install 2> /dev/null)"')


@pytest.fixture(scope="module")
def rack(bench: Bench) -> Iterator[Path]:
    """The cluster, up."""
    file = bench.cluster_file()
    head = bench.machines[0]
    head.run(*words("cluster", "up", file))
    yield file
    head.run(*words("cluster", "down", file))
    assert [line for line in processes(bench) if "ray" in line or "cluster.node" in line] == []
    log = f"cat {Path.home()}/.local/state/tinyattn/clusters/bench/*/log"
    assert "database system is shut down" in head.run("sh", "-c", log).stdout  # not killed


def test_up_again_changes_nothing_and_another_of_its_name_is_refused(
    bench: Bench, rack: Path
) -> None:
    head = bench.machines[0]
    again = head.run(*words("cluster", "up", rack))
    assert again.stdout.count(": running") == 3
    other = bench.folder / "other.yaml"
    other.write_text(json.dumps({**json.loads(rack.read_text()), "port": 6399}))
    done = head.run(*words("cluster", "up", other), check=False)
    assert done.returncode == 2
    assert "give this one another name" in done.stderr
    assert head.run(*words("cluster", "status", rack)).stdout.count(": up") == 3


def test_nobody_joins_without_the_token(bench: Bench, rack: Path) -> None:
    head = bench.machines[0]
    join = (
        "import os, ray; os.environ.update(RAY_AUTH_MODE='token', RAY_AUTH_TOKEN='0' * 64);"
        f"ray.init(address='{head.address}:6379', _node_ip_address='{head.address}')"
    )
    done = head.run(sys.executable, "-c", join, check=False)
    assert done.returncode != 0
    listed = f"ls {Path.home()}/.local/state/tinyattn/clusters/bench/*/token"
    place = head.run("sh", "-c", listed).stdout.strip()
    token = head.run("cat", place).stdout
    assert len(token) == 64
    assert not any(token in line for line in processes(bench))
    modes = head.run("stat", "-c", "%a", place).stdout
    assert modes == "600\n"


def test_ray_alone_listens_everywhere_and_a_firewall_keeps_strangers_away(
    bench: Bench, rack: Path
) -> None:
    """The stranger is the machine that runs this test: the bench's bridge is its own interface."""
    head, other = bench.machines[:2]
    for machine in bench.machines:
        for line in machine.run("ss", "-Hltnp").stdout.splitlines():
            place = line.split()[3].rpartition(":")[0].strip("[]")
            is_ray = re.search(r'"(raylet|gcs_server|ray::)', line)
            assert is_ray or place in (machine.address, "127.0.0.1", "::1"), line
        shut = machine.run("sh", "-c", f"stat -c %a {Path('/tmp')}/tinyattn-{os.geteuid()}").stdout
        assert shut == "700\n"

    def reaches(run: Callable[..., Any]) -> bool:
        code = f"import socket; socket.create_connection(('{head.address}', 6379), 2)"
        return bool(run([sys.executable, "-c", code]).returncode == 0)

    def from_here(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, check=False, capture_output=True)

    assert reaches(from_here)
    said = head.run(*words("doctor", "--on", rack), check=False).stdout
    rule = said[said.index("nft '") :].splitlines()[0]
    if shutil.which("nft") is None:
        pytest.skip("needs nftables")
    for _ in range(2):  # the second time changes nothing
        head.run("sh", "-c", rule)
    assert head.run("nft", "list", "ruleset").stdout.count(" drop") == 2
    assert not reaches(from_here)
    assert reaches(lambda command: other.run(*command, check=False))
    assert head.run(*words("cluster", "status", rack)).stdout.count(": up") == 3


def mlflow_login(head: Machine) -> dict[str, str]:
    """What `tinyattn` itself reads on the head."""
    read = "import json; from cluster.services import mlflow_environment as m; "
    done = head.run(sys.executable, "-c", read + "print(json.dumps(m('bench')))")
    login: dict[str, str] = json.loads(done.stdout)
    return login


ASK = """
import base64, sys, urllib.error, urllib.request
address, user, password, host = sys.argv[1:]
page = f"http://{address}:5000/api/2.0/mlflow/experiments/get?experiment_id=0"
login = base64.b64encode(f"{user}:{password}".encode()).decode()
headers = {"Authorization": f"Basic {login}"} if user else {}
request = urllib.request.Request(page, headers=headers | ({"Host": host} if host else {}))
try:
    print(urllib.request.urlopen(request, timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_mlflow_answers_to_its_password_and_name_only(bench: Bench, rack: Path) -> None:
    """Asked from another machine of the rack, by plain HTTP."""
    head, other = bench.machines[:2]
    login = mlflow_login(head)
    user, password = login["MLFLOW_TRACKING_USERNAME"], login["MLFLOW_TRACKING_PASSWORD"]

    def asked(user: str, password: str, host: str = "") -> str:
        done = other.run(sys.executable, "-c", ASK, head.address, user, password, host)
        return done.stdout.strip()

    assert asked(user, password) == "200"
    assert asked("", "") == "401"
    assert asked(user, "wrong") == "401"
    assert asked("admin", "password1234") == "401"  # what MLflow's own documentation names
    assert asked(user, password, "evil.example:5000") == "403"


CONNECT = """
import sys, psycopg
folder, password = sys.argv[1:]
try:
    psycopg.connect(host=folder, user="tinyattn", dbname="postgres", password=password)
    print("in")
except psycopg.OperationalError as error:
    print(error)
"""


def test_postgresql_has_a_socket_and_a_password_and_no_port(bench: Bench, rack: Path) -> None:
    head = bench.machines[0]
    folder = Path("/var/lib/tinyattn/bench")
    assert "postgres" in head.run("ss", "-Hlxp").stdout  # so ss would show it
    assert "postgres" not in head.run("ss", "-Hltunp").stdout
    login = json.loads(head.run("cat", folder / "mlflow.json").stdout)

    def asked(password: str) -> str:
        return head.run(sys.executable, "-c", CONNECT, folder, password).stdout.strip()

    assert asked(login["database"]) == "in"
    assert "password authentication failed" in asked("wrong")
    assert "password authentication failed" in asked(login["password"])  # that of MLflow's pages


def sweep_words(tiny: str, name: str) -> list[object]:
    settings = {
        "plm": tiny, "name": name, **SIZES, "search.trials": TRIALS,
        "search.sampler": "random", "search.seed": 3, "asha": "null",
    }  # fmt: skip
    return ["agreement", *(f"{key}={value}" for key, value in settings.items())]


@pytest.mark.slow
def test_a_machine_on_which_every_worker_fails_is_set_aside_and_named(
    bench: Bench, rack: Path, tiny: str, tmp_path: Path
) -> None:
    """DeepSpeed's folder is empty there, as after a disk that lost files."""
    head, second, third = bench.machines[:3]
    log = tmp_path / "log"
    package = importlib.util.find_spec("deepspeed")
    assert package is not None
    assert package.origin is not None
    third.run("mount", "-t", "tmpfs", "tmpfs", Path(package.origin).parent)
    words_of_it = [*sweep_words(tiny, "aside"), "epochs=48", "search.trials=6", "--on", rack]
    driver = head.start(*words("sweep", "run", *words_of_it), log=log)
    try:
        assert driver.wait(timeout=300) == 0, log.read_text()
    finally:
        third.run("umount", Path(package.origin).parent)
    said = log.read_text()
    assert f"machine {third.address} is set aside: 2 workers in a row failed" in said
    assert said.count(f"lost its worker on {third.address}") == 2
    trials = read_event_log(bench.folder / "storage/runs/sweeps/aside/search.jsonl").values()
    assert [trial.outcome for trial in trials] == [Outcome.COMPLETED] * 6
    used = {result.node_ip for trial in trials for result in trial.results}
    assert used == {head.address, second.address}


@pytest.mark.slow
def test_a_machine_that_is_too_small_leaves_its_trials_to_larger_ones(
    bench: Bench, rack: Path, tiny: str, tmp_path: Path
) -> None:
    """The third says that it has 4 GiB, and no allocation succeeds there."""
    head, second, third = bench.machines[:3]
    third.power_off()
    third.boot()
    kinds = ("MemTotal", "MemFree", "MemAvailable")
    (tmp_path / "meminfo").write_text("".join(f"{kind}: 4194304 kB\n" for kind in kinds))
    (tmp_path / "ops.py").write_text("raise MemoryError\n")
    package = importlib.util.find_spec("deepspeed.ops")
    assert package is not None
    for file, target in (("meminfo", "/proc/meminfo"), ("ops.py", package.origin)):
        third.run("mount", "--bind", tmp_path / file, target)
    head.run(*words("cluster", "up", rack))
    log = tmp_path / "log"
    words_of_it = [*sweep_words(tiny, "small"), "epochs=48", "search.trials=4", "--on", rack]
    driver = head.start(*words("sweep", "run", *words_of_it), log=log)
    assert driver.wait(timeout=300) == 0, log.read_text()
    said = f"machine {third.address} is set aside: it has too little memory for a row of "
    assert said in log.read_text()
    trials = read_event_log(bench.folder / "storage/runs/sweeps/small/search.jsonl").values()
    assert [trial.outcome for trial in trials] == [Outcome.COMPLETED] * 4
    used = {result.node_ip for trial in trials for result in trial.results}
    assert used == {head.address, second.address}
    third.power_off()
    third.boot()
    head.run(*words("cluster", "up", rack))


@pytest.mark.slow
def test_a_sweep_with_a_machine_lost_and_another_joined_ends_complete_and_the_same(
    bench: Bench, rack: Path, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, second, third = bench.machines[:3]
    log = tmp_path / "log"
    driver = head.start(*words("sweep", "run", *sweep_words(tiny, "s"), "--on", rack), log=log)
    runs = bench.folder / "storage" / "runs"
    event_log = runs / "sweeps" / "s" / "search.jsonl"
    until(lambda: event_log.exists() and third.address in event_log.read_text(), 120)
    third.power_off()
    fourth = bench.add(3)
    file = bench.cluster_file(
        nodes=[{"host": m.address, "cpus": 1, "gpus": 0} for m in (second, fourth)]
    )
    head.run(*words("cluster", "up", file))
    assert driver.wait(timeout=400) == 0, log.read_text()
    uri = f"http://{head.address}:5000"
    for key, value in mlflow_login(head).items():
        monkeypatch.setenv(key, value)
    assert untruths(runs, "s", TRIALS, uri) == []
    alone = tmp_path / "alone"
    whole = subprocess.run(
        words("sweep", "run", *sweep_words(tiny, "s"), "--runs", alone),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert whole.returncode == 0, whole.stderr
    assert histories(runs, "s", uri) == histories(alone, "s")
    trials = read_event_log(event_log).values()
    used = {result.node_ip for trial in trials for result in trial.results}
    assert used == {machine.address for machine in (head, second, third, fourth)}
    third.boot()
