"""What trials leave for others, in a folder and in object stores: one contract for all.

The S3 here is moto's server, see s3.py.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from s3 import S3, everything, overwrite
from tiny_plm import save_tiny_plm

from cluster import join
from cluster.config import Cluster
from cluster.local import this_machine
from orchestrator.batch import UNWRITABLE, Bench
from orchestrator.depot import STATES_KEPT, Depot, ObjectStore, SharedFolder
from orchestrator.home import Home
from orchestrator.worker import Worker
from tinyattn.atomic import replace_folder
from tinyattn.config import TrainConfig
from tinyattn.errors import DamagedError, StorageError, UsageError
from tinyattn.objects import Objects, fetched
from tinyattn.ranks import ONE, Ranks


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    store = S3("depot-tests")
    yield store
    store.go()


@pytest.fixture(params=["folder", "file", "s3"])
def depot(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> Depot:
    folder = tmp_path / "runs" / "sweeps" / "s"
    if request.param == "folder":
        return SharedFolder(folder)
    urls = {"file": f"{tmp_path.as_uri()}/store", "s3": s3.url(f"{tmp_path.name}/store")}
    return ObjectStore(folder, Objects(urls[request.param]))


def leave_state(depot: Depot, index: int, ranks: Ranks = ONE) -> None:
    with depot.fresh_state("a_1", index, ranks) as folder:
        (folder / f"of-{ranks.rank}").mkdir()
        (folder / f"of-{ranks.rank}" / "state").write_text(f"{index}")


def leave_adapter(depot: Depot, index: int) -> None:
    with depot.fresh_adapter("a_1", index) as target, replace_folder(target) as fresh:
        (fresh / "weights").write_text(f"{index}")


class TestDepot:
    def test_the_last_two_states_are_kept_and_read_back(self, depot: Depot) -> None:
        assert depot.states("a_1") == set()
        for index in (1, 2, 10):
            leave_state(depot, index)
        assert depot.trials_with_states() == {"a_1"}
        older, newer = sorted(depot.states("a_1"))
        for name, index in ((older, 2), (newer, 10)):
            with depot.state("a_1", name) as folder:
                assert (folder / "of-0" / "state").read_text() == str(index)
        depot.clear("a_1", 0)
        depot.clear("a_1", 0)
        assert depot.states("a_1") == set() == depot.trials_with_states()

    def test_a_trial_that_begins_anew_keeps_what_it_writes(self, depot: Depot) -> None:
        """All states of its first life were damaged; the numbers of its second are lower."""
        for index in (7, 8):
            leave_state(depot, index)
            leave_adapter(depot, index)
        for index in (1, 2, 3):
            leave_state(depot, index)
            leave_adapter(depot, index)
            *_, newest = sorted(depot.states("a_1"))
            with depot.state("a_1", newest) as folder:
                assert (folder / "of-0" / "state").read_text() == str(index)
            adapter = depot.adapter("a_1", index)
            assert adapter is not None
            with fetched(depot.address(adapter)) as folder:
                assert (folder / "weights").read_text() == str(index)
        assert len(depot.states("a_1")) == STATES_KEPT

    def test_a_state_whose_writing_fails_is_none(self, depot: Depot) -> None:
        leave_state(depot, 1)
        with pytest.raises(StorageError), depot.fresh_state("a_1", 2, ONE) as folder:
            (folder / "missing" / "state").write_text("x")
        assert len(depot.states("a_1")) == 1

    def test_ranks_fill_one_state(self, depot: Depot) -> None:
        together = threading.Barrier(2)
        said: list[Any] = [None, None]

        class Two(Ranks):
            """Threads for processes, as on two nodes: what they share is what they gather."""

            def gather(self, value: Any) -> list[Any]:
                said[self.rank] = value
                together.wait(10)
                found = list(said)
                together.wait(10)
                return found

        other = threading.Thread(target=leave_state, args=(depot, 1, Two(1, 2)))
        other.start()
        leave_state(depot, 1, Two(0, 2))
        other.join()
        (name,) = depot.states("a_1")
        with depot.state("a_1", name) as folder:
            assert sorted(path.name for path in folder.glob("of-*")) == ["of-0", "of-1"]

    def test_the_best_adapter_reaches_the_driver_and_workers(self, depot: Depot) -> None:
        assert depot.adapter("a_1", 10) is None
        with pytest.raises(StorageError, match=r"a_1.*is not there.*restore it"):
            depot.address(depot.folder / "adapters" / "a_1" / "000010")
        leave_adapter(depot, 9)
        leave_adapter(depot, 10)
        adapter = depot.adapter("a_1", 10)
        assert adapter is not None
        assert adapter.is_relative_to(depot.folder)
        assert (adapter / "weights").read_text() == "10"
        with fetched(depot.address(adapter)) as folder:
            assert (folder / "weights").read_text() == "10"

    def test_an_adapter_that_nobody_heard_of_does_not_take_the_place_of_the_best(
        self, depot: Depot
    ) -> None:
        """A worker wrote the adapter of evaluation 7 and died before it could say so."""
        for index in (2, 5, 7):
            leave_adapter(depot, index)
        best = depot.adapter("a_1", 5)
        assert best is not None
        assert (best / "weights").read_text() == "5"
        depot.clear("a_1", 5)
        assert depot.adapter("a_1", 5) == best
        assert depot.adapter("a_1", 2) is depot.adapter("a_1", 7) is None

    def test_it_travels_to_workers(self, depot: Depot) -> None:
        leave_state(depot, 1)
        assert pickle.loads(pickle.dumps(depot)).states("a_1") == depot.states("a_1")


def test_a_damaged_object_is_known(tmp_path: Path, s3: S3) -> None:
    store = Objects(s3.url(tmp_path.name))
    store.put("a", {"x": b"1"})
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    outside = body.getvalue() + sha256(body.getvalue()).digest()
    for content, said in ((b"", "SHA-256"), (b"x" * 9999, "SHA-256"), (outside, "outside")):
        overwrite(store.within("a").url, content)
        with pytest.raises(DamagedError, match=said):
            store.get("a", tmp_path / "in")
    assert not (tmp_path / "outside").exists()
    with pytest.raises(DamagedError, match="is not there"):
        store.get("b", tmp_path / "in")


def test_a_damaged_adapter_is_not_passed_off_as_the_best(tmp_path: Path) -> None:
    depot = ObjectStore(tmp_path / "s", Objects(f"{tmp_path.as_uri()}/store"))
    leave_adapter(depot, 3)
    leave_adapter(depot, 4)
    (tmp_path / "store" / "adapters" / "a_1" / "000004.tar").write_bytes(b"half")
    with pytest.warns(UserWarning, match="a_1 is left without an adapter"):
        assert depot.adapter("a_1", 4) is None


def test_errors_of_a_store_are_one_message(s3: S3) -> None:
    with pytest.raises(StorageError, match=r"s3://nobody.*NO_SUCH_BUCKET.*; see that it is there"):
        Objects(s3.url(bucket="nobody")).put("a", {})
    with pytest.raises(StorageError, match="Unexpected query parameter"):
        Objects(f"{s3.url()}&shceme=https").names("a")


def test_a_sweep_has_one_place_for_its_life(tmp_path: Path, s3: S3) -> None:
    first, second = (Home(tmp_path / runs, storage=s3.url()) for runs in ("a", "b"))
    ours, others = first.depot("s"), second.depot("s")
    assert isinstance(ours, ObjectStore)
    assert isinstance(others, ObjectStore)
    assert ours.objects != others.objects  # drivers that know nothing of each other
    assert Home(tmp_path / "a").depot("s") == ours  # also without the cluster file
    assert isinstance(Home(tmp_path / "c").depot("s"), SharedFolder)
    assert isinstance(Home(tmp_path / "c").depot("s"), SharedFolder)


def test_a_sweep_does_not_go_from_a_folder_to_an_object_store_or_back(tmp_path: Path) -> None:
    """What its trials left would not be found: they would begin anew."""
    url = f"{tmp_path.as_uri()}/store"
    folder, store = Home(tmp_path / "a", shared=True), Home(tmp_path / "a", storage=url)
    folder.depot("one")
    with pytest.raises(UsageError, match=r"'one' was begun in the folder .*/a/sweeps/one,"):
        store.depot("one")
    store.depot("two")
    with pytest.raises(UsageError, match=r"'two' was begun in the object store file:.*/store/two-"):
        folder.depot("two")
    (store.sweep_folder("three") / "search.jsonl").touch()  # begun before there was a note
    with pytest.raises(UsageError, match="'three' was begun in the folder"):
        store.depot("three")
    (store.sweep_folder("four") / "storage").touch()
    with pytest.raises(StorageError, match="storage: is empty"):
        store.depot("four")
    (store.sweep_folder("five") / "storage").write_bytes(b"\xff\xfe")
    with pytest.raises(StorageError, match="storage: cannot be read: line 1 is not UTF-8"):
        store.depot("five")
    os.mkfifo(store.sweep_folder("six") / "storage")
    with pytest.raises(StorageError, match="storage: cannot be read: it is a pipe"):
        store.depot("six")


def test_the_note_of_a_sweeps_place_outlives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on disk before it has its name, and its name before anybody acts on it."""
    synced, fsync, replace = [], os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        synced.append(f"to {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    Home(tmp_path, storage=f"{tmp_path.as_uri()}/store").depot("s")
    content, *later = synced
    assert content.endswith(".new")  # a name of its own until it is whole
    assert later == ["to storage", "s"]


@pytest.mark.slow
def test_a_worker_passes_over_a_damaged_state(s3: S3, tmp_path: Path) -> None:
    plm = str(save_tiny_plm(tmp_path / "plm"))
    base = TrainConfig(task="agreement", plm=plm, epochs=2, max_train_rows=80, max_length=32)
    objects = Objects(s3.url(tmp_path.name))

    def worker() -> Worker:
        made = Worker(Bench(base, ObjectStore(tmp_path / "s", objects)), 1)
        made.begin({"trial": "a_1", "point": {}})
        return made

    first = worker()
    results = [first.step() for _ in range(3)]
    newest = f"states/a_1/{objects.names('states/a_1')[-1]}"
    overwrite(objects.within(newest).url, b"damaged")
    second = worker()
    with pytest.warns(UserWarning, match="SHA-256 is another; going back to the state before"):
        again = [second.step() for _ in range(3)]
    assert [result["evaluation"] for result in again] == [2, 3, 4]  # the last one comes again
    assert [r["train_loss"] for r in again[:2]] == [r["train_loss"] for r in results[1:]]
    s3.go()
    try:
        assert "Could not connect" in worker().step()[UNWRITABLE]  # and no start from nothing
    finally:
        s3.come()
    assert worker().step()["evaluation"] == 4


def cluster(storage: str) -> Cluster:
    return Cluster.model_validate(
        {"name": "c", "launch": {"type": "rack"}, "head": {"host": "h"}, "storage": storage}
    )


@pytest.mark.slow
def test_every_node_tries_the_store_before_a_sweep(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_alone = s3.url("here").partition("&endpoint")[0]
    with this_machine(num_cpus=1):
        join.refuse_unusable(cluster(s3.url("here")))
        join.refuse_unusable(cluster(f"{tmp_path.as_uri()}/store"))
        assert everything(s3.url("here")) == everything(f"{tmp_path.as_uri()}/store") == []
        with pytest.raises(StorageError, match="NO_SUCH_BUCKET"):
            join.refuse_unusable(cluster(s3.url(bucket="nobody")))
        address = s3.url().rpartition("=")[2]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")  # the driver alone knows it
        with pytest.raises(StorageError, match="not shared by all machines") as caught:
            join.refuse_unusable(cluster(s3_alone))
    assert re.search(r"\n  [\d.]+: s3://depot-tests/here", str(caught.value))


def test_a_shared_folder_costs_no_import_of_pyarrow() -> None:
    """Nor does an actor that is only starting wait for torch."""
    code = "import sys, orchestrator.depot, cluster.config; print({*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'tinyattn.objects'" in done.stdout
    assert "'pyarrow'" not in done.stdout
    assert "'torch'" not in done.stdout
