"""The parts of `benchmarks/gpu.sh`, in order of worth, each in a process with a time limit.

What a part finds is in gpu.json and table.txt as soon as it says so, each written as a whole: cut
off at any second, they hold what was found until then. This process imports neither torch nor
anything of the wheels, so that it can tell what they lack.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

LEAST = {"torch": (2, 6), "transformers": (5, 10)}
ENDING = 8
"""Seconds that are kept to end in."""
WORTHWHILE = 15
"""Seconds without which a part is not begun."""
_NVIDIA = ("/usr/local/nvidia/bin", "/usr/bin", "/usr/local/cuda/bin")
"""Where drivers lie that are mounted into a machine."""
_PR_SET_PDEATHSIG = 1


class WrongUseError(Exception):
    """This was called in a way that cannot be meant."""


@dataclass(frozen=True)
class Part:
    """Something to find out, by a program that prints it."""

    name: str
    words: tuple[str, ...]
    """Module and arguments, for this Python."""
    seconds: float
    """It may take at most."""
    wanted: bool = True
    """Whether it belongs to what is always done; others are done while time is left."""
    mps: bool = False
    """Whether its processes share the GPU by NVIDIA's multi-process service."""


MACHINE = Part("machine", ("benchmarks.measure", "machine"), 60)
"""What is here; all other parts depend on it."""


def parts_of(gpu: bool, tokens: Path) -> Iterator[Part]:
    """What to find out on a GPU, or on a CPU as far as it can."""
    shape = "roberta-base" if gpu else "minilm"

    def measure(
        name: str, seconds: float, *words: str, wanted: bool = True, mps: bool = False
    ) -> Part:
        module = ("benchmarks.measure", *words, "--tokens", str(tokens))
        return Part(name, module, seconds, wanted, mps)

    def steps(of: str, precision: str, seconds: float, *words: str, wanted: bool = True) -> Part:
        given = ("steps", "--shape", of, "--precision", precision, *words)
        return measure(f"steps of {of}, {precision}", seconds, *given, wanted=wanted)

    marks = "gpu" if gpu else "not gpu and not gpu_ray and not gpus"
    pytest = ("pytest", "tests/gpu", "-v", "-m", marks, "-p", "no:cacheprovider", "--color=no")
    yield Part("tests", pytest, 150)
    both = ("--batches", "16", "4")
    if gpu:
        for precision in ("bf16", "fp32"):
            few = () if precision == "bf16" else ("--most", "8", "--repeats", "2")
            for size, seconds in (("base", 60), ("large", 75)):
                yield steps(f"roberta-{size}", precision, seconds, *both, *few)
    else:
        yield steps("minilm", "fp32", 150, *both, "--most", "4")
        yield steps("minilm", "bf16", 100, *both, "--most", "4", "--repeats", "2")
    crowd = ("throughput", "--shape", shape, "--repeats", "2", *(() if gpu else ("--most", "4")))
    yield measure("processes", 75 if gpu else 150, *crowd)
    if gpu:
        yield measure("processes with MPS", 60, *crowd, mps=True)
    precision = "bf16" if gpu else "fp32"
    for way in ("the default way", "the best way"):
        given = ("profile", "--shape", shape, "--precision", precision, "--way", way)
        yield measure(f"profile of {way}", 30, *given)
    rest = ("--task", "rte") if gpu else ("--task", "rte", "--most", "4", "--repeats", "2")
    if not gpu:
        yield _named(steps("minilm", "fp32", 200, *rest, wanted=False), "RTE: ")
        return
    for size, seconds in (("base", 60), ("large", 90)):
        yield _named(steps(f"roberta-{size}", "bf16", seconds, *rest, wanted=False), "RTE: ")
    for size in ("base", "large"):
        yield steps(f"roberta-{size}", "tf32", 40, "--most", "8", wanted=False)
    for other in ("minilm", "llama-small", "gpt2"):
        yield steps(other, "bf16", 40, "--most", "8", wanted=False)


def _named(part: Part, prefix: str) -> Part:
    return Part(prefix + part.name, part.words, part.seconds, part.wanted, part.mps)


# ---- what was found ----


@dataclass
class Report:
    """What was found so far, in memory and on disk."""

    folder: Path
    machine: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """State of each part: begun, done, failed, cut, left out."""
    tests: dict[str, str] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Steps, processes and profiles by what they are of."""
    left_out: list[dict[str, str]] = field(default_factory=list)

    def take(self, part: str, line: dict[str, Any]) -> None:
        """A line of a part."""
        kind = line.pop("kind")
        if kind == "machine":
            self.machine |= line
        elif kind == "test":
            self.tests[line["name"]] = line["outcome"]
        elif kind == "left out":
            self.left_out.append({"part": part, **line})
        else:
            key = line["group"] if kind == "steps" else f"{part}: {line['group']}"
            self.groups[key + (f", {line['way']}" if "way" in line else "")] = {
                "kind": kind,
                "part": part,
                **line,
            }
        self.write()

    def begin(self, part: Part) -> None:
        """A part runs from now on."""
        self._set(part, "begun", "")

    def end(self, part: Part, state: str, why: str = "", seconds: float = 0.0) -> None:
        """A part runs no more."""
        self._set(part, state, why, seconds)

    def _set(self, part: Part, state: str, why: str, seconds: float = 0.0) -> None:
        own = {"state": state, "why": why, "seconds": round(seconds, 1), "wanted": part.wanted}
        self.parts[part.name] = own
        self.write()

    def write(self) -> None:
        """Bring both files up to date, each as a whole."""
        content = {
            "machine": self.machine, "parts": self.parts, "tests": self.tests,
            "groups": self.groups, "left out": self.left_out,
        }  # fmt: skip
        for name, text in (
            ("gpu.json", json.dumps(content, indent=1)),
            ("table.txt", "\n".join(self.table()) + "\n"),
        ):
            fresh = self.folder / f".{name}"
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self.folder / name)

    def best_way(self, shape: str) -> str:
        """The fastest of ours at batches of 16 of SST-2, of what is known."""
        found = [
            (own["ms"], name)
            for group in self.groups.values()
            if group["kind"] == "steps" and group["group"].startswith(f"{shape}, sst2, batch 16")
            for name, own in group["ways"].items()
            if name == "solo" or name.startswith("packed")
        ]
        return min(found)[1] if found else "solo"

    @property
    def is_whole(self) -> bool:
        """Whether all that was wanted was done and nothing failed."""
        done = all(own["state"] == "done" or not own["wanted"] for own in self.parts.values())
        cut = {name for name, own in self.parts.items() if not own["wanted"]}
        bad = [outcome for outcome in self.tests.values() if outcome in ("FAILED", "ERROR")]
        return done and not bad and all(own["part"] in cut for own in self.left_out)

    # ---- as text ----

    def table(self) -> Iterator[str]:
        """Lines of table.txt."""
        yield ", ".join(f"{name} {value}" for name, value in self.machine.items())
        yield from self._parts()
        yield from self._tests()
        for key, group in self.groups.items():
            yield f"\n{key}"
            yield from _TABLES[group["kind"]](group)
        if self.left_out:
            yield "\nleft out"
            for own in self.left_out:
                yield f"  {own.get('group', '')}: {own.get('way', '')}: {own['why']}"

    def _parts(self) -> Iterator[str]:
        yield "\nparts"
        for name, own in self.parts.items():
            why = f": {own['why']}" if own["why"] else ""
            yield f"  {own['state']:9} {own['seconds']:6.0f} s  {name}{why}"

    def _tests(self) -> Iterator[str]:
        if not self.tests:
            return
        outcomes = list(self.tests.values())
        counts = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
        yield "\ntests: " + ", ".join(f"{n} {outcome.lower()}" for outcome, n in counts.items())
        for name, outcome in self.tests.items():
            if outcome != "PASSED":
                yield f"  {outcome:8} {name}"


def _steps_table(group: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"  {'':18}{'ms':>9}{'quartiles':>18}{'÷ floor':>9}{'launches':>10}{'MiB':>8}{'repeats':>9}"
    )
    for name, own in group["ways"].items():
        spread = f"{own['q1']:.2f}-{own['q3']:.2f}"
        rest = [
            f"{own[key]:.{digits}f}" if key in own else "-"
            for key, digits in (("ratio to floor", 2), ("launches", 0), ("MiB", 0))
        ]
        yield (
            f"  {name:18}{own['ms']:9.2f}{spread:>18}{rest[0]:>9}{rest[1]:>10}{rest[2]:>8}"
            f"{own['repeats']:>9}"
        )


def _rates_table(group: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {'':18}{'trial-steps/s':>14}{'lowest-highest':>18}{'÷ recipe':>10}"
    middle = {name: sorted(rates)[len(rates) // 2] for name, rates in group["rates"].items()}
    for name, rates in group["rates"].items():
        spread = f"{min(rates):.1f}-{max(rates):.1f}"
        yield f"  {name:18}{middle[name]:14.1f}{spread:>18}{middle[name] / middle['recipe']:10.2f}"


def _profile_table(group: Mapping[str, Any]) -> Iterator[str]:
    whole = f"of {group['total_ms']:.1f} ms in {group['steps']} steps"
    yield f"  {'ms':>9}{'share':>8}{'calls':>7}  {whole}"
    for row in group["rows"]:
        yield f"  {row['ms']:9.2f}{row['share']:8.1%}{row['calls']:7}  {row['name'][:90]}"


_TABLES = {"steps": _steps_table, "throughput": _rates_table, "profile": _profile_table}


# ---- running ----


class Runner:
    """Runs parts until the time is over."""

    def __init__(self, report: Report, deadline: float, environment: dict[str, str]) -> None:
        self.report, self.deadline, self.environment = report, deadline, environment
        self.log = report.folder / "log.txt"
        self.log.unlink(missing_ok=True)

    def run(self, part: Part) -> None:
        """Run a part, or say that no time is left for it."""
        seconds = min(part.seconds, self.deadline - time.monotonic())
        if seconds < WORTHWHILE:
            self.report.end(part, "left out", "no time was left")
            return
        self.report.begin(part)
        begin = time.monotonic()
        environment = dict(self.environment)
        state, why = "cut", "this run was ended"
        try:
            with multi_process_service(environment) if part.mps else contextlib.nullcontext():
                state, why = self._run(part, seconds, environment)
        except (FileNotFoundError, subprocess.SubprocessError) as error:
            state, why = "left out", str(error)
        finally:
            self.report.end(part, state, why, time.monotonic() - begin)

    def _run(self, part: Part, seconds: float, environment: dict[str, str]) -> tuple[str, str]:
        """How a part ended, and why so."""
        words = [sys.executable, "-m", *part.words]
        if "the best way" in words:
            words[words.index("the best way")] = self.report.best_way(part.words[3])
        words = ["solo" if word == "the default way" else word for word in words]
        with self.log.open("a") as log:
            print(f"== {part.name}", file=log, flush=True)
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True,
                env=environment, start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip
            try:
                in_time = self._listen(part, process, time.monotonic() + seconds, log)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if not in_time:
            return "cut", f"after {seconds:.0f} s"
        # 1: a test failed; 5: none was left to run
        if process.returncode == 0 or (part.name == "tests" and process.returncode == 1):
            return "done", ""
        return "failed", f"exit code {process.returncode}: {self._last_words()}"

    def _listen(self, part: Part, process: Any, until: float, log: Any) -> bool:
        """Take what a part prints; whether it ended in time."""
        with os.fdopen(os.dup(process.stdout.fileno()), "rb", buffering=0) as pipe:
            waiting = b""
            while True:
                left = until - time.monotonic()
                if left <= 0 or not select.select([pipe], [], [], left)[0]:
                    return False
                content = pipe.read(2**16)
                *lines, waiting = (waiting + content).split(b"\n")
                for text in lines:
                    line = line_of(text.decode("utf-8", "replace"))
                    if line is None:
                        log.write(text.decode("utf-8", "replace") + "\n")
                        log.flush()
                    else:
                        self.report.take(part.name, line)
                if not content:
                    process.wait()
                    return True

    def _last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def line_of(text: str) -> dict[str, Any] | None:
    """What a line of a part tells: JSON of `benchmarks.measure`, or the end of a test."""
    if text.startswith('{"kind":'):
        with contextlib.suppress(json.JSONDecodeError):
            line: dict[str, Any] = json.loads(text)
            return line
    test = re.match(r"(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", text)
    return test and {"kind": "test", "name": test[1], "outcome": test[2]}


def _die_with_parent() -> None:
    """In a part's process: end when this one does, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def multi_process_service(environment: dict[str, str]) -> Iterator[None]:
    """Within the block processes with this environment share the GPU by MPS.

    Raises:
        FileNotFoundError: NVIDIA's program is not there.
        SubprocessError: it does not start.
    """
    places = os.pathsep.join([os.environ.get("PATH", ""), *_NVIDIA])
    control = shutil.which("nvidia-cuda-mps-control", path=places)
    if control is None:
        raise FileNotFoundError("there is no nvidia-cuda-mps-control")
    with tempfile.TemporaryDirectory(prefix="tinyattn-mps-") as folder:
        environment |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([control, "-d"], check=True, env=environment, timeout=20)
        try:
            yield
        finally:
            subprocess.run([control], input=b"quit\n", env=environment, timeout=20, check=False)


def too_old() -> list[str]:
    """What is missing or older than it may be."""
    found = []
    for name, least in LEAST.items():
        needed = ".".join(map(str, least))
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            found.append(f"{name} is not there, needed is {needed} or newer")
            continue
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < least:
            found.append(f"{name} is {version}, needed is {needed} or newer")
    return found


def install(wheels: Path, target: Path) -> list[str]:
    """Install wheels where this Python's own packages are not touched; return what failed."""
    files = sorted(wheels.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
           "--disable-pip-version-check", "--target", str(target)]  # fmt: skip

    def installed(*chosen: Path) -> bool:
        done = subprocess.run([*pip, *map(str, chosen)], capture_output=True, check=False)
        return done.returncode == 0

    if not files or installed(*files):
        return []
    return [file.name for file in files if not installed(file)]


def parsed(words: list[str]) -> argparse.Namespace:
    """What was asked for.

    Raises:
        WrongUseError: a folder lacks what is needed.
    """
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.sh",
        usage="%(prog)s [--python PYTHON] --wheels DIR [--seconds N] [OUT]",
    )
    parser.add_argument("--wheels", type=Path, required=True, help="what `make gpu-bundle` made")
    parser.add_argument("--seconds", type=float, default=570, help="all may take")
    parser.add_argument("out", type=Path, nargs="?", default=Path("runs/bench/gpu"))
    chosen = parser.parse_args(words)
    if not list((chosen.wheels / "tokens").glob("*.npz")):
        raise WrongUseError(f"--wheels {chosen.wheels}: no tokens/*.npz there; `make gpu-bundle`")
    if not chosen.seconds > ENDING + WORTHWHILE:
        raise WrongUseError(
            f"--seconds {chosen.seconds:g}: needed are {ENDING + WORTHWHILE + 1} at least"
        )
    return chosen


def main() -> int:
    """Run all parts that there is time for."""
    begin = time.monotonic()
    chosen = parsed(sys.argv[1:])
    chosen.out.mkdir(parents=True, exist_ok=True)
    report = Report(chosen.out)
    with contextlib.suppress(OSError, ValueError):
        report.machine["commit"] = json.loads((chosen.wheels / "bundle.json").read_text())["commit"]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="tinyattn-gpu-") as site:
        for name in install(chosen.wheels / "wheels", Path(site)):
            report.left_out.append({"part": "wheels", "way": name, "why": "cannot be installed"})
        path = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
        environment = os.environ | {
            "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false", "TINYATTN_CACHE": f"{site}/cache",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        deadline = begin + chosen.seconds - ENDING
        run_all(Runner(report, deadline, environment), chosen.wheels / "tokens")
    report.write()
    print("\n".join(report.table()))
    if not report.is_whole:
        return 1
    return 0 if report.machine.get("gpu") else 3


def run_all(runner: Runner, tokens: Path) -> None:
    """Find out what is here, then the rest."""
    report = runner.report
    missing = too_old()
    if missing:
        report.end(MACHINE, "left out", "; ".join(missing))
    else:
        runner.run(MACHINE)
    for part in parts_of(bool(report.machine.get("gpu")), tokens.resolve()):
        if report.parts["machine"]["state"] == "done":
            runner.run(part)
        else:
            report.end(part, "left out", "this Python cannot do it, see machine")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WrongUseError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
