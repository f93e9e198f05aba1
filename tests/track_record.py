"""Serious bugs found so far, each shown by a test that fails on the commit before its fix, and passes on it.

    python -m tests.track_record            # list them
    python -m tests.track_record 3 8        # show bugs 3 and 8, each on two worktrees in a temporary folder
    python -m tests.track_record all

`docs/guarantees.md` has the same table.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Bug(NamedTuple):
    fix: str
    test: str
    """The test that the fix brought."""
    what: str


BUGS = (
    Bug(
        "65948b50",
        "tests/test_one_way.py::test_attempts_do_not_overlap_when_all_processes_of_a_node_are_suspended",
        "A task ran twice at once: all processes of its node were suspended for longer than the lease, and it went on "
        "after it had been started elsewhere.",
    ),
    Bug(
        "c10396d1",
        "tests/test_backup.py::test_a_backup_that_is_restored_twice_gives_no_number_twice",
        "After a backup was restored a second time, numbers of jobs were given again, so that results of one job could "
        "be taken for another's.",
    ),
    Bug(
        "538d16a9",
        "tests/core/test_priced.py::test_a_task_waits_when_the_only_node_of_its_kind_is_removed",
        "Removing the last node with GPUs of a kind stopped the writer of the partition; nothing was scheduled.",
    ),
    Bug(
        "ab9c20ab",
        "tests/core/test_recall.py::test_nodes_set_aside_count_when_they_are_held_for_a_starving_ask",
        "Cycles went on without end when nodes that were set aside for one job were held for a starving one.",
    ),
    Bug(
        "39e9069e",
        "tests/core/test_moment.py::test_a_claim_that_uses_the_last_of_max_jobs_opens_the_lane_behind_a_job_that_may_"
        "not_start_any_more",
        "A job was passed by a loan of another queue, because the job before it in its lane might not start any more.",
    ),
    Bug(
        "88c7c86f",
        "tests/agent/test_task_table.py::test_an_end_that_a_restored_server_does_not_know_is_reported_again",
        "A task whose end was confirmed, and then lost by a restore of the server, stayed running for ever.",
    ),
    Bug(
        "ca42334e",
        "tests/http/test_notices.py::test_a_malformed_address_is_refused_and_would_end_no_other_notices",
        "Any user could end the notices of all users with a malformed address.",
    ),
    Bug(
        "08f40989",
        "tests/agent/test_hub.py::test_a_shorter_lease_counts_once_the_agent_has_acknowledged_it",
        "A lease that an operator shortened counted before the agent knew it, so that tasks could be started twice.",
    ),
    Bug(
        "135c79bc",
        "tests/http/test_floods.py::test_a_wrong_token_with_a_large_body_is_answered",
        "A request with a wrong token and a large body got no answer.",
    ),
)


def run_at(commit: str, bug: Bug, folder: Path) -> int:
    """Run the test of a bug, with the tests as the fix has them, on the sources of a commit. Return pytest's status."""
    git = ["git", "-C", str(ROOT)]
    subprocess.run([*git, "worktree", "add", "--detach", "-q", str(folder), commit], check=True)
    try:
        changed = subprocess.run(
            [*git, "diff", "--name-only", "--diff-filter=AM", f"{bug.fix}^", bug.fix, "--", "tests"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        subprocess.run(["git", "-C", str(folder), "checkout", "-q", bug.fix, "--", *changed], check=True)
        environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", bug.test]
        return subprocess.run(command, check=False, cwd=folder, env=environment, timeout=600).returncode
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


def main(chosen: list[str]) -> int:
    numbers = [at for at, _ in enumerate(BUGS, 1) if chosen == ["all"] or str(at) in chosen]
    if not numbers:
        for at, bug in enumerate(BUGS, 1):
            print(f"{at:2}  {bug.fix}  {bug.what}\n              {bug.test}")
        return 0
    wrong = 0
    for at in numbers:
        bug = BUGS[at - 1]
        with tempfile.TemporaryDirectory() as folder:
            before = run_at(f"{bug.fix}^", bug, Path(folder) / "before")
            after = run_at(bug.fix, bug, Path(folder) / "after")
        shown = before == 1 and after == 0
        wrong += not shown
        print(
            f"== {at} {bug.fix}: {'shown' if shown else f'not shown: {before} before the fix, {after} with it'}",
            flush=True,
        )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
