"""The answers of table 9: the zip that the GLUE server takes, by the best trials of a reproduction.

Its score is the server's alone. Under the protocol `paper` no rows are left to judge a champion by,
so these trials are not promoted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from orchestrator.registry.glue_server import FILES
from orchestrator.registry.submission import answered, check_test_rows, plan_by_trials
from orchestrator.registry.submission_files import is_written, paths_beside, write_submission
from orchestrator.reproduction.run import Reproduction, best_trial
from orchestrator.state.workspace import Workspace

ZIP = "glue-submission.zip"


def check_server(
    reproduction: Reproduction, methods: Collection[str], workspace: Workspace
) -> list[str]:
    """Return what is to be said of test rows that are not here, before anything is trained.

    Args:
        reproduction: the sweeps that are to run.
        methods: the method whose adapters answer; empty: there is nothing to answer.
        workspace: where the data are.

    Raises:
        TaskError: a file of test rows is damaged or does not fit its task.
    """
    tasks = {need.task for need in reproduction.needs if need.method in methods}
    absent = check_test_rows(workspace, tasks)
    if not absent:
        return []
    return [f"note: {ZIP} will lack answers, as there are no test rows of {', '.join(absent)}"]


def answer_server(
    reproduction: Reproduction,
    methods: Collection[str],
    workspace: Workspace,
    failed: Collection[str],
    say: Callable[[str], None],
) -> list[Path]:
    """Answer GLUE's test rows, and write zip and card into the folder of the suite.

    Files of the same adapters and the same rows are there already and stay as they are; others are
    replaced.

    Args:
        reproduction: the sweeps, which have ended.
        methods: the method whose adapters answer; empty: there is nothing to answer.
        workspace: where they are kept.
        failed: names within the suite of sweeps that did not come to their end.
        say: called with messages: what is left out, whose rows are being answered.

    Returns:
        Zip and card; none if no task that was trained has test rows here.

    Raises:
        TaskError: a file of test rows is damaged or does not fit its task.
        StorageError: a file cannot be written.
    """
    trials = {}
    for need in reproduction.needs:
        if need.method in methods and need.name not in failed:
            best = best_trial(reproduction, need, workspace)
            if best is not None:
                name = f"{reproduction.sweep(need)}/{best.name}"
                trials[need.task] = workspace.store().trial(name)
    if not trials:
        return []
    plan = plan_by_trials(workspace, trials)
    paths = paths_beside(workspace.path_of(reproduction.name) / ZIP)
    if not plan.sources:
        say(f"note: no {ZIP}: no task that was trained has test rows here")
        return []
    if not is_written(plan, paths):
        write_submission(answered(workspace, plan, True, say), paths)
    count = len(plan.sources) + len(plan.of_one_class)
    whole = "" if count == len(FILES) else "; the server takes all together"
    say(f"for the GLUE server: {paths[0]}, {count} of its {len(FILES)} files{whole}")
    return [*paths]
