"""What faults cost: trials lost, things done twice, runs left open, state forgotten.

    python -m benchmarks.faults              # this project
    python -m benchmarks.faults --stock      # the same with Ray Tune's own classes

Each fault hits a real sweep (six trials of a two-layer PLM, ASHA, SQLite under MLflow) at random
moments; then the sweep goes on to its end, and its journal, Optuna study, MLflow store and ASHA's
rungs are compared. Needs `tests/` beside it; "disk full" needs root, for a small file system.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from sweep_truth import untruths
from tiny_plm import save_tiny_plm

from benchmarks import stock

TRIALS = 6
PATIENCE = 300.0


@dataclass
class Toll:
    """What a fault cost, over all times that it was tried."""

    times: int = 0
    lost: int = 0
    twice: int = 0
    running: int = 0
    state: int = 0
    words: list[str] = field(default_factory=list)

    def __add__(self, other: Toll) -> Toll:
        numbers = (getattr(self, n) + getattr(other, n) for n in ("times", "lost", "twice"))
        return Toll(
            *numbers, self.running + other.running, self.state + other.state,
            self.words + other.words,
        )  # fmt: skip

    def row(self, name: str) -> str:
        numbers = (self.times, self.lost, self.twice, self.running, self.state)
        return f"| {name} | " + " | ".join(map(str, numbers)) + " |"


class Sweep:
    """A sweep of this project, through its command line."""

    def __init__(self, folder: Path, plm: Path, seed: int, uri: str | None = None) -> None:
        self.runs, self.log = folder / "runs", folder / "log"
        self.settings = {
            "plm": plm, "name": "s", "max_length": 32, "max_train_rows": 400, "batch_size": 16,
            "epochs": 6, "search.trials": TRIALS, "search.seed": seed, "asha.grace": 2,
        }  # fmt: skip
        self.place = ["--runs", str(self.runs), *(["--tracking-uri", uri] if uri else [])]
        self.uri = uri
        self.driver: subprocess.Popen[bytes] | None = None
        self.server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [f"{key}={value}" for key, value in self.settings.items()]
        self._run("sweep", "run", "agreement", *words)

    def resume(self) -> None:
        self._run("sweep", "resume", "s")

    def _run(self, *words: str) -> None:
        command = [sys.executable, "-m", "orchestrator.cli", *words, *self.place]
        with self.log.open("ab") as out:
            self.driver = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def lines(self) -> int:
        journal = self.runs / "sweeps" / "s" / "search.jsonl"
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    def began(self) -> bool:
        """Whether there is something to go on with."""
        return (self.runs / "sweeps" / "s" / "sweep.json").exists()

    def newest_states(self) -> list[Path]:
        """The newest state file of each trial."""
        trials = (self.runs / "sweeps" / "s" / "states").glob("*")
        states = [sorted(trial.glob("[0-9]*/trial_state.pt")) for trial in trials]
        return [found[-1] for found in states if found]

    def wait_for_progress(self, events: int = 3) -> None:
        known, deadline = self.lines(), time.monotonic() + PATIENCE
        while self.lines() < known + events and self.alive():
            if time.monotonic() > deadline:
                raise TimeoutError(self.log.read_text())
            time.sleep(0.02)

    def alive(self) -> bool:
        return self.driver is not None and self.driver.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send the driver a signal and wait until it and its Ray are gone."""
        assert self.driver is not None
        family = psutil.Process(self.driver.pid).children(recursive=True) if self.alive() else []
        self.driver.send_signal(number)
        self.driver.wait()
        psutil.wait_procs(family, timeout=30)

    def workers(self) -> list[psutil.Process]:
        assert self.driver is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.driver.pid).children(recursive=True)
            return [child for child in children if "ray::ResourceTrainable" in child.name()
                    or "ray::ResourceTr" in child.name()]  # fmt: skip
        return []

    def finish(self) -> None:
        """Go on until the sweep is done."""
        for _ in range(5):
            assert self.driver is not None
            if self.driver.wait(timeout=PATIENCE) == 0:
                return
            self.resume()
        raise RuntimeError(self.log.read_text())

    def toll(self, times: int) -> Toll:
        found = untruths(self.runs, "s", TRIALS, self.uri)
        kinds = Counter(_kind(words) for words in found)
        return Toll(times, kinds["lost"], kinds["twice"], kinds["running"], kinds["state"], found)


def _kind(words: str) -> str:
    if "MLflow runs for" in words or "no adapter" in words:
        return "lost"
    if "several runs" in words or "run twice" in words or "at steps" in words:
        return "twice"
    if "RUNNING" in words or "status" in words:
        return "running"
    return "state"


@contextlib.contextmanager
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- faults ----


def driver_killed(sweep: Sweep, luck: random.Random) -> int:
    """kill -9, three times in the sweep."""
    return _killed(sweep, luck, 3)


def _killed(sweep: Sweep, luck: random.Random, most: int) -> int:
    sweep.start()
    times = 0
    while times < most:
        sweep.wait_for_progress(luck.randrange(1, 6))
        time.sleep(luck.random())
        if not sweep.alive():
            break
        sweep.kill()
        times += 1
        sweep.resume()
    return times


def driver_killed_early(sweep: Sweep, luck: random.Random) -> int:
    """kill -9 at any moment of a driver's first seconds, before or while trials start."""
    sweep.start()
    for _ in range(4):
        time.sleep(luck.uniform(2, 14))
        if not sweep.alive():
            return 0
        sweep.kill()
        sweep.resume() if sweep.began() else sweep.start()
    return 4


def worker_killed(sweep: Sweep, luck: random.Random) -> int:
    """kill -9 of a trial's worker, four times in the sweep."""
    sweep.start()
    times = 0
    for _ in range(4):
        sweep.wait_for_progress(3)
        workers = sweep.workers()
        if workers:
            luck.choice(workers).kill()
            times += 1
    return times


def ctrl_c_twice(sweep: Sweep, luck: random.Random) -> int:
    """Two SIGINTs, the second while the first is being obeyed; twice in the sweep."""
    sweep.start()
    for _ in range(2):
        sweep.wait_for_progress(4)
        if sweep.alive():
            assert sweep.driver is not None
            sweep.driver.send_signal(signal.SIGINT)
            time.sleep(luck.uniform(0, 0.5))
            sweep.kill(signal.SIGINT)
        sweep.resume()
    return 2


def checkpoint_corrupted(sweep: Sweep, luck: random.Random) -> int:
    """The driver is killed and the newest state of every trial damaged; twice in the sweep."""
    sweep.start()
    times = 0
    for _ in range(2):
        sweep.wait_for_progress(6)
        sweep.kill()
        for file in sweep.newest_states():
            content = file.read_bytes()
            file.write_bytes(content[: luck.randrange(len(content))])
            times += 1
        sweep.resume()
    return times


def disk_full(sweep: Sweep, luck: random.Random) -> int:
    """The disk of the runs folder fills in mid-sweep, and has room again later."""
    sweep.runs.mkdir(parents=True)
    size = ["-o", "size=200m"]
    subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", str(sweep.runs)], check=True)
    sweep.start()
    for _ in range(2):
        sweep.wait_for_progress(luck.randrange(3, 7))
        filler = sweep.runs / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"0" * 4096)
        assert sweep.driver is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            sweep.driver.wait(timeout=60)
        filler.unlink()
        if not sweep.alive():
            sweep.resume()
    return 2


def mlflow_away(sweep: Sweep, luck: random.Random) -> int:
    """MLflow's server is killed in mid-sweep and is back half a minute later; twice."""
    _serve(sweep)
    sweep.start()
    for _ in range(2):
        sweep.wait_for_progress(4)
        assert sweep.server is not None
        os.killpg(sweep.server.pid, signal.SIGKILL)
        sweep.server.wait()
        time.sleep(30)
        _serve(sweep)
    return 2


def _serve(sweep: Sweep, port: int = 5077) -> None:
    """Start MLflow's server for a sweep and wait until it answers."""
    sweep.runs.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "mlflow", "server", f"--port={port}"]
    words += [f"--backend-store-uri=sqlite:///{sweep.runs}/server.db"]
    words += [f"--artifacts-destination={sweep.runs}/artifacts", "--workers=1"]
    sweep.uri = f"http://127.0.0.1:{port}"
    sweep.place = ["--runs", str(sweep.runs), "--tracking-uri", sweep.uri]
    quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with sweep.log.open("ab") as out:
        sweep.server = subprocess.Popen(
            words, stdout=out, stderr=out, env=quiet, start_new_session=True
        )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{sweep.uri}/health", timeout=2):
            return
        time.sleep(0.3)
    raise TimeoutError(sweep.uri)


Fault = Callable[[Sweep, random.Random], int]
FAULTS: dict[str, tuple[Fault, int]] = {
    "driver kill -9, at work": (driver_killed, 5),
    "driver kill -9, in its first seconds": (driver_killed_early, 2),
    "worker kill -9": (worker_killed, 2),
    "Ctrl-C twice": (ctrl_c_twice, 2),
    "newest checkpoint damaged": (checkpoint_corrupted, 2),
    "disk full": (disk_full, 1),
    "MLflow away": (mlflow_away, 1),
}
"""Each fault and in how many sweeps."""


class StockSweep(Sweep):
    """The same with Ray Tune's own classes; see `benchmarks.stock`."""

    def start(self) -> None:
        self.runs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.stock", str(self.runs)]
        with self.log.open("ab") as out:
            self.driver = subprocess.Popen(
                [*command, *([self.uri] if self.uri else [])],
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def resume(self) -> None:
        self.start()

    def began(self) -> bool:
        return True

    def lines(self) -> int:
        results = (self.runs / "ray" / "s").glob("*/result.json")
        return sum(file.read_bytes().count(b"\n") for file in results)

    def newest_states(self) -> list[Path]:
        found = [
            sorted(trial.glob("checkpoint_*/state.json"))
            for trial in (self.runs / "ray" / "s").glob("*")
        ]
        return [states[-1] for states in found if states]

    def workers(self) -> list[psutil.Process]:
        assert self.driver is not None
        children = psutil.Process(self.driver.pid).children(recursive=True)
        return [child for child in children if "ray::Implicit" in child.name()]

    def finish(self) -> None:
        """Go on until it is done, or has failed for good: that is part of what is counted."""
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            super().finish()
        if self.alive():
            self.kill()

    def toll(self, times: int) -> Toll:
        found = stock.toll_of(self.runs, self.uri)
        return Toll(times, **found)


def suffer(name: str, seed: int, plm: Path, kind: type[Sweep]) -> Toll:
    """One sweep with one fault, brought to its end."""
    fault, _ = FAULTS[name]
    with place() as folder:
        sweep = kind(folder, plm, seed)
        try:
            times = fault(sweep, random.Random(seed))
            sweep.finish()
            return sweep.toll(times)
        finally:
            if sweep.alive():
                sweep.kill()
            if sweep.server is not None:
                os.killpg(sweep.server.pid, signal.SIGKILL)
            subprocess.run(["umount", "-l", str(sweep.runs)], check=False, capture_output=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="Part of a fault's name.", default="")
    parser.add_argument("--stock", action="store_true", help="Ray Tune's own classes.")
    chosen = parser.parse_args()
    kind = StockSweep if chosen.stock else Sweep
    print("| fault | times | trials lost | done twice | left RUNNING | state lost |")
    print("|---|---|---|---|---|---|")
    with place() as folder:
        plm = save_tiny_plm(folder / "tiny")
        for name, (_, sweeps) in FAULTS.items():
            if chosen.only in name:
                tolls = (suffer(name, seed, plm, kind) for seed in range(sweeps))
                found = sum(tolls, Toll())
                print(found.row(name), flush=True)
                for words in found.words:
                    print("   ", words, file=sys.stderr)


if __name__ == "__main__":
    main()
