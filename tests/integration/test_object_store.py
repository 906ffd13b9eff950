"""A sweep whose trials leave their states and adapters in an object store, on a cluster of one.

The S3 here is moto's server, see s3.py.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from live import call, lines_of, start, sweep_words, wait_for
from ray_processes import TRIAL, ray_processes
from s3 import S3, everything, overwrite
from sweep_truth import histories, untruths
from tiny_plm import save_tiny_plm

from orchestrator.state.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.cluster]  # minutes; a cluster of one machine
SMALL: dict[str, Any] = {
    "search.trials": 4, "epochs": 3, "max_train_rows": 160, "asha.grace": 1,
    "finalize.finalists": 1, "finalize.seeds": 1, "finalize.search.trials": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    store = S3("sweep-tests")
    yield store
    store.go()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_plm(tmp_path_factory.mktemp("plm") / "tiny"))


def written(folder: Path, storage: str) -> Path:
    all_of = [found for addresses in psutil.net_if_addrs().values() for found in addresses]
    own = [a.address for a in all_of if a.family is socket.AF_INET and a.address[:4] != "127."]
    if not own:  # Ray takes another name for loopback
        pytest.skip("needs an address besides loopback")
    with socket.socket() as probe:
        probe.bind((own[0], 0))
        port = probe.getsockname()[1]
    head = {"host": own[0], "cpus": 2, "gpus": 0}
    launch = {"type": "rack"}
    data: dict[str, Any] = {"name": "one", "launch": launch, "head": head, "storage": storage}
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump({**data, "port": port, "mlflow": None}))
    return file


@pytest.fixture(scope="module")
def rack(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster file; the cluster is up."""
    folder = tmp_path_factory.mktemp("rack")
    file = written(folder, s3.url())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        up = call("cluster", "up", file)
        try:
            assert up.exit_code == 0, up.stderr
            yield file
        finally:
            assert call("cluster", "down", file).exit_code == 0


def kept(s3: S3, kind: str) -> list[str]:
    """Paths of what the store has of `states` or `adapters`."""
    return [path for path in everything(s3.url()) if f"/{kind}/" in path]


@pytest.fixture(scope="module")
def whole(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs folder of an undisturbed sweep, whose trials left all in it."""
    runs = tmp_path_factory.mktemp("whole")
    assert call(*sweep_words(tiny, runs, **SMALL)).exit_code == 0
    return runs


def test_a_sweep_killed_damaged_and_cut_off_ends_as_one_in_a_folder(
    rack: Path, s3: S3, tiny: str, whole: Path, tmp_path: Path
) -> None:
    runs, log = tmp_path / "runs", tmp_path / "log"
    driver = start(*sweep_words(tiny, runs, **SMALL), "--on", rack, log=log)
    wait_for(lambda: lines_of(runs) >= 6)
    workers = ray_processes(TRIAL, of=1)  # of all machines of the rack
    driver.kill()
    driver.wait()
    assert not psutil.wait_procs(workers, timeout=120)[1]
    newest = {Path(path).parent: path for path in kept(s3, "states")}
    assert newest
    for path in newest.values():
        overwrite(s3.url(f"sweeps/{path}"), b"damaged")

    known = lines_of(runs)
    driver = start("sweep", "resume", "s", "--runs", runs, "--on", rack, log=log)
    wait_for(lambda: lines_of(runs) >= known + 3)
    s3.go()
    assert driver.wait(timeout=120) == 1
    s3.come()
    text = log.read_text()
    assert ": s3://sweep-tests/sweeps/s-" in text
    assert f"then `tinyattn resume s --runs {runs} --on {rack}` goes on" in text
    assert "Traceback" not in text

    done = call("resume", "s", "--runs", runs)  # it knows where its states are
    assert done.exit_code == 0, done.output
    assert untruths(runs, "s", SMALL["search.trials"]) == []
    assert not (runs / "sweeps" / "s" / "states").exists()
    assert kept(s3, "states") == []
    assert len(kept(s3, "adapters")) == SMALL["search.trials"]
    there, here = histories(runs, "s"), histories(whole, "s")
    assert there.keys() == here.keys()
    for key, losses in there.items():
        shared = min(len(losses), len(here[key]))
        assert losses[:shared] == here[key][:shared]

    for words in (["finalize", "s"], ["promote", "s"]):
        done = call(*words, "--runs", runs)
        assert done.exit_code == 0, done.output
    trials = Workspace(runs).tracker().trials_of(Workspace(runs).tracker().find_sweep("s"))
    starts = [t.config["start.adapter"] for t in trials if t.kind == "expert"]
    assert all(place.startswith("s3://sweep-tests/sweeps/s-") for place in starts)
    assert len(starts) == 1


@pytest.mark.parametrize("fault", ["no bucket", "away"])
def test_a_store_that_cannot_be_used_is_an_error_before_the_first_trial(
    rack: Path, s3: S3, tiny: str, tmp_path: Path, fault: str
) -> None:
    bad = s3.url(bucket="nobody") if fault == "no bucket" else f"{s3.url().rpartition(':')[0]}:1"
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(rack.read_text()), "storage": bad}))
    runs = tmp_path / "runs"
    done = call(*sweep_words(tiny, runs, **SMALL), "--on", file)
    assert done.exit_code == 1
    said = {"no bucket": "NO_SUCH_BUCKET", "away": "Could not connect"}[fault]
    assert done.stderr.startswith(f"error: {bad}: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (runs / "sweeps").exists()
