"""The direction of imports, and one home for each dependency; see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("tinyattn", "orchestrator", "cluster", "search_spaces")
HOMES = {
    "deepspeed": {"tinyattn/engine.py"},
    "optuna": {"orchestrator/search.py"},
    "click": {"orchestrator/cli/*"},
    "ray": {
        f"orchestrator/{name}.py"
        for name in (
            "runner",
            "scheduler",
            "asker",
            "watcher",
            "trial",
            "worker",
            "pack",
            "packing",
            "rank_group",
            "nodes",
        )
    }
    | {"cluster/*"},
    # tracking writes runs, champions and registry the registered models, serving their files
    "mlflow": {
        f"orchestrator/{name}.py"
        for name in ("store", "tracking", "outbox", "champions", "registry", "serving")
    },
}
WRITES_RUNS = {"create_run", "log_batch", "log_artifact", "log_artifacts", "set_terminated"}


def trees(package: str) -> dict[str, ast.Module]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"no code of {package} under {ROOT}"
    return {str(f.relative_to(ROOT)): ast.parse(f.read_text("utf-8")) for f in files}


def imported(tree: ast.Module) -> set[str]:
    """Top-level names that a module imports, anywhere in it."""
    nodes = list(ast.walk(tree))
    names = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("tinyattn", set()),
        ("cluster", {"tinyattn"}),
        ("search_spaces", {"tinyattn"}),
        ("orchestrator", {"tinyattn", "search_spaces"}),
    ],
)
def test_imports_go_down_only(package: str, allowed: set[str]) -> None:
    for path, tree in trees(package).items():
        extra = {"cluster"} if path.startswith("orchestrator/cli/") else set()
        above = (imported(tree) & set(PACKAGES)) - {package} - allowed - extra
        assert not above, f"{path} imports {above}"


@pytest.mark.parametrize("dependency", HOMES)
def test_a_dependency_has_one_home(dependency: str) -> None:
    found = {
        path
        for package in PACKAGES
        for path, tree in trees(package).items()
        if dependency in imported(tree)
    }
    assert found, f"nothing imports {dependency}: HOMES is out of date"
    strangers = {p for p in found if not any(Path(p).match(home) for home in HOMES[dependency])}
    assert not strangers


def test_only_the_tracker_writes_runs() -> None:
    for path, tree in trees("orchestrator").items():
        calls = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        assert path == "orchestrator/tracking.py" or not calls & WRITES_RUNS, path


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path, tree in trees(package).items():
            name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            # What a function or TYPE_CHECKING imports is no cycle when modules are loaded.
            graph[name] = {
                node.module
                for node in tree.body
                if isinstance(node, ast.ImportFrom) and node.module
            }
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        if name not in done:
            for other in graph[name] & graph.keys():
                visit(other, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_asking_how_a_sweep_does_waits_for_no_large_library() -> None:
    large = {"torch", "transformers", "deepspeed", "ray", "optuna"}
    modules = "orchestrator.cli, orchestrator.control, orchestrator.tracking"
    code = f"import sys, {modules}; print(sorted({large} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_training_on_token_ids_needs_nothing_that_reads_text() -> None:
    """A bare GPU machine has token ids, but perhaps no datasets or pyarrow."""
    large = {"datasets", "pyarrow", "pandas", "ray", "optuna", "mlflow"}
    code = f"import sys, tinyattn.trainer; print(sorted({large} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
