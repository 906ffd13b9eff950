"""Sweeps that are killed and extended, through the real command line."""

from __future__ import annotations

import random
import time
from pathlib import Path

import psutil
import pytest
from live import TRIALS, call, lines_of, start, sweep_words, wait_for
from ray_processes import TRIAL, ray_processes
from sweep_truth import histories, untruths
from tiny_plm import save_tiny_plm

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_plm(tmp_path_factory.mktemp("plm") / "tiny"))


@pytest.fixture(scope="module")
def undisturbed(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("whole")
    done = call(*sweep_words(tiny, runs, **{"resources.concurrent": 1}))
    assert done.exit_code == 0, done.stderr
    assert untruths(runs, "s", TRIALS) == []
    return runs


def test_a_driver_killed_again_and_again_loses_and_repeats_nothing(
    tiny: str, undisturbed: Path, tmp_path: Path
) -> None:
    log, luck = tmp_path / "log", random.Random(5)
    driver = start(*sweep_words(tiny, tmp_path), log=log)
    for _ in range(2):  # a third might come when all but the last trial have ended
        known = lines_of(tmp_path)
        wait_for(lambda known=known: lines_of(tmp_path) > known)  # driver and Ray are there,
        wait_for(lambda known=known: lines_of(tmp_path) >= known + 4)  # now workers too
        time.sleep(luck.random())
        workers = ray_processes(TRIAL, of=driver.pid)
        assert workers
        driver.kill()
        driver.wait()
        # Ray's own agents take half a minute more.
        assert psutil.wait_procs(workers, timeout=20)[1] == []
        driver = start("sweep", "resume", "s", "--runs", tmp_path, log=log)
    assert driver.wait(timeout=240) == 0, log.read_text()
    assert untruths(tmp_path, "s", TRIALS) == []
    # Whatever ASHA made of the order of arrivals: what both ran has the same losses to the bit.
    whole, found = histories(undisturbed, "s"), histories(tmp_path, "s")
    assert found.keys() == whole.keys()
    for key, losses in found.items():
        shared = min(len(losses), len(whole[key]))
        assert losses[:shared] == whole[key][:shared]


def test_a_finished_sweep_is_extended_and_resuming_it_changes_nothing(undisturbed: Path) -> None:
    again = call("sweep", "resume", "s", "--runs", undisturbed)
    assert again.exit_code == 0, again.stderr
    assert untruths(undisturbed, "s", TRIALS) == []
    fewer = call("sweep", "extend", "s", "trials=3", "--runs", undisturbed)
    assert fewer.exit_code == 2
    assert "has 6 trials" in fewer.stderr
    more = call("sweep", "extend", "s", "trials=8", "--runs", undisturbed)
    assert more.exit_code == 0, more.stderr
    assert untruths(undisturbed, "s", 8) == []
