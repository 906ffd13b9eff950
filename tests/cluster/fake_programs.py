"""Programs in place of ssh, sbatch, squeue, scancel, kubectl and the head's Python.

`python fake_programs.py FOLDER PROGRAM WORD...` keeps in FOLDER/runs what runs: a file for each
thing that was started, `CLUSTER@PART`, with a number that no other start has. FOLDER/calls has a
line for each call, FOLDER/broken the names of programs that fail.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any

FOLDER, PROGRAM, WORDS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]


def start(name: str, content: str) -> str:
    """Start a thing with a number of its own, which is returned."""
    number = str(time.monotonic_ns())
    (FOLDER / "runs" / name).write_text(f"{number} {content}")
    return number


def content_of(name: str) -> str | None:
    """What a thing was started with; None: it does not run."""
    path = FOLDER / "runs" / name
    return path.read_text().partition(" ")[2] if path.exists() else None


def agent(host: str, action: str, request: dict[str, Any]) -> dict[str, Any]:
    """A machine's agent: its answers have what the head looks at."""
    if action == "probe":
        (Path(request["storage"]) / request["answer"]).touch()
        state = "down" if content_of(f"{request['up']['name']}@{host}") is None else "running"
        said: dict[str, Any] = {"python": "3.11.7", "versions": {}, "time": time.time()}
        return said | {"storage": "", "state": state}
    name = f"{request['name']}@{host}"
    clusters = FOLDER / "state" / "tinyattn" / "clusters"
    token_file = clusters / request["name"] / socket.gethostname() / "token"
    match action:
        case "up":
            if content_of(name) == request["token"]:
                return {"state": "running"}
            start(name, request["token"])
            if request["is_head"]:
                token_file.parent.mkdir(parents=True, exist_ok=True)
                token_file.write_text(request["token"])
            return {"state": "started"}
        case "status":
            alive = content_of(name) is not None
            return {"alive": alive, "log": [] if alive else ["nothing was started here"]}
        case "down":
            was = content_of(name) is not None
            (FOLDER / "runs" / name).unlink(missing_ok=True)
            if host == "127.0.0.1":
                token_file.unlink(missing_ok=True)
            return {"ended": was}
    raise SystemExit(f"no action {action}")


def job_of(number: str) -> Path | None:
    jobs = (FOLDER / "runs").glob("*@job")
    return next((path for path in jobs if path.read_text().startswith(number)), None)


def slurm(text: str) -> None:
    if PROGRAM == "sbatch":
        name = next(word for word in WORDS if word.startswith("--job-name="))
        print(start(name.partition("=tinyattn-")[2] + "@job", text))
    elif PROGRAM == "squeue":
        if job_of(WORDS[WORDS.index("-j") + 1]) is None:
            raise SystemExit("slurm_load_jobs error: Invalid job id specified")
        print("RUNNING")
    elif (job := job_of(WORDS[0])) is not None:
        job.unlink()


def kubectl(text: str) -> None:
    """It keeps to `-n NAMESPACE VERB`, and to one cluster a call."""
    verb = WORDS[2]
    if verb == "apply":
        (name,) = set(re.findall(r"\bapp: tinyattn-(\w+)", text))
        if content_of(f"{name}@pods") != text:
            start(f"{name}@pods", text)
        print(f"raycluster.ray.io/tinyattn-{name} applied")
    elif verb == "get":
        print("" if content_of(WORDS[4].removeprefix("tinyattn-") + "@pods") is None else "ready")
    elif verb == "delete":
        label = WORDS[WORDS.index("-l") + 1]
        (FOLDER / "runs" / (label.removeprefix("app=tinyattn-") + "@pods")).unlink(missing_ok=True)


def main() -> None:
    text = "" if PROGRAM in ("squeue", "scancel") else sys.stdin.read()
    with (FOLDER / "calls").open("a") as calls:
        calls.write(json.dumps({"program": PROGRAM, "words": WORDS, "stdin": text}) + "\n")
    if PROGRAM in (FOLDER / "broken").read_text().split():
        print("it is broken", file=sys.stderr)
        raise SystemExit(255)
    if PROGRAM == "kubectl":
        kubectl(text)
    elif PROGRAM in ("python", "ssh"):
        host = WORDS[WORDS.index("--") + 1] if PROGRAM == "ssh" else "127.0.0.1"
        print(json.dumps(agent(host, WORDS[-1].split()[-1], json.loads(text))))
    else:
        slurm(text)


main()
