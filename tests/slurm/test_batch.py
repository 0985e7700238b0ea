"""Batch jobs: submitted, followed, looked after, put back into the queue; on a real cluster."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

HOLD = 'echo "held by $CSRUN_ROLE"; exec sleep 1000'


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """One list of jobs for all commands of a test."""
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def csrun(cluster: Any, run: Any, home: dict[str, str]) -> Any:
    """Runs csrun to its end: (words) -> job."""
    return lambda *words: run(cluster, *words, program="csrun", env=home)


def number(job: Any) -> str:
    """Slurm's number of a submitted job."""
    found = re.fullmatch(r"Submitted batch job (\d+)\n.*", job.stdout, re.DOTALL)
    assert found, job.shown()
    return found[1]


def test_a_batch_job_is_followed_and_its_exit_code_is_ours(cluster: Any, run: Any, tmp_path: Path) -> None:
    words = [
        "sh",
        "-c",
        'echo "$CSRUN_ROLE got: $1"; [ "$CSRUN_RANK" = 0 ] || exit 0; sleep 0.3; exit 7',
        "-",
    ]
    given = """a  b 'c' "d" $HOME `id`; *\\"""
    job = run(
        cluster,
        *(
            "--use-sbatch",
            "--total-nodes=3",
            "--tasks-per-node=1",
            "--single-task-nodes=2",
            "--log-dir=my logs",
        ),
        *words,
        given,
    )
    assert job.process.returncode == 7
    assert f"chief | chief got: {given}\n" in job.stdout
    assert f"worker 1 | worker got: {given}\n" in job.stdout
    assert "failed, exit code 7" in job.stderr
    assert (tmp_path / "my logs" / "chief-0.log").read_text() == f"chief got: {given}\n"
    assert (tmp_path / "my logs" / f"slurm-{number(job)}.out").exists()


def test_a_dry_run_prints_the_script_and_submits_nothing(cluster: Any, run: Any, tmp_path: Path) -> None:
    job = run(
        cluster,
        *("--use-sbatch", "--dry-run", "--total-nodes=2", "--time=30", "--dependency=afterok:1", "--requeue"),
        *("--warn-before=60", "true"),
    )
    assert job.process.returncode == 0
    for line in ("hetjob", "--gres=cs:1", "--time=30", "--dependency=afterok:1", "--requeue"):
        assert f"#SBATCH {line}\n" in job.stdout
    assert "#SBATCH --signal=B:USR1@60\n" in job.stdout
    assert not (tmp_path / "csrun_logs").exists()
    assert "Submitted" not in job.stdout


def test_a_job_of_more_nodes_than_can_be_used_is_told_which_must_return(
    cluster: Any, start: Any, csrun: Any, home: dict[str, str], wait: Any
) -> None:
    cluster.run("scontrol", "update", "nodename=cs-node4", "state=drain", "reason=memory test")
    try:
        job = start(cluster, "--use-sbatch", "--no-follow", "--total-nodes=4", "true", env=home)
        assert job.end() == 0
        missing = (
            "it needs 4 nodes and only 3 of the partition's 4 can be used, so it cannot start before 1 more "
            "returns to service: cs-node4 is drained (memory test)"
        )
        assert f"the job will wait: {missing}" in job.stderr
        # Slurm gives its reason after its next look at the queue.
        wait(lambda: f"; {missing}; expected start not known\n" in csrun("status", number(job)).stdout)
        status = csrun("status", number(job)).stdout
        assert "it is next" not in status
        assert csrun("cancel", number(job)).process.returncode == 0
    finally:
        cluster.run("scontrol", "update", "nodename=cs-node4", "state=resume")


def test_a_waiting_job_shows_place_reason_and_holder_and_can_be_cancelled(
    cluster: Any, start: Any, csrun: Any, home: dict[str, str], wait: Any
) -> None:
    flags = ("--use-sbatch", "--no-follow", "--total-nodes=1", "--tasks-per-node=2")
    # The job may have begun when its launcher ends, so there may be processes of it.
    holder = start(cluster, *flags, "sh", "-c", HOLD, env=home)
    assert holder.end() == 0
    wait(lambda: "state     running" in csrun("status", number(holder)).stdout)
    waiting = start(cluster, *flags, "true", env=home)
    assert waiting.end() == 0
    wait(lambda: "it is next and waits for" in csrun("status", number(waiting)).stdout)
    status = csrun("status", number(waiting)).stdout
    assert f"the CS system is held by job {number(holder)} of " in status
    assert ", place 1: " in status
    assert number(holder) in csrun("status").stdout

    cancelled = csrun("cancel", number(waiting))
    assert (cancelled.process.returncode, "cancelled" in cancelled.stderr) == (0, True)
    wait(lambda: csrun("logs", number(holder), "worker-0").stdout == "held by worker\n")
    assert csrun("cancel", number(holder)).process.returncode == 0
    found = json.loads(csrun("status", "--json", number(holder)).stdout)
    assert found["state"] == "cancelled", found
    assert "has ended already: cancelled" in csrun("cancel", number(holder)).stderr


def test_ctrl_c_ends_the_following_and_not_the_job(
    cluster: Any, start: Any, csrun: Any, home: dict[str, str]
) -> None:
    words = ("--use-sbatch", "--total-nodes=1", "sh", "-c", HOLD)
    job = start(cluster, *words, env=home)
    job.wait_for("worker 0 | held by worker")
    job.signal(signal.SIGINT)
    assert job.end() == 130
    assert f"job {number(job)} continues" in job.stderr
    assert "state     running" in csrun("status", number(job)).stdout
    follower = start(cluster, "logs", "--follow", number(job), program="csrun", env=home)
    follower.wait_for("held by chief")
    assert csrun("cancel", number(job)).process.returncode == 0
    assert follower.end() not in (0, None)


def test_a_checkpoint_before_the_end_puts_the_job_back_into_the_queue(
    cluster: Any, start: Any, run: Any, tmp_path: Path, home: dict[str, str]
) -> None:
    program = """
        [ "$CSRUN_RANK" = 0 ] || exit 0
        if [ -e saved ]; then echo "on from $(cat saved)"; exit 0; fi
        trap 'echo 34 > saved; echo "saved, requeue=$CSRUN_REQUEUE"; exit 75' USR1
        echo begun; while :; do sleep 0.05; done
    """
    job = start(
        cluster,
        *("--use-sbatch", "--requeue", "--total-nodes=2", "--tasks-per-node=1", "--log-dir=logs"),
        *("sh", "-c", program),
        env=home,
    )
    job.wait_for("chief | begun")
    cluster.run("scancel", "--batch", "--signal=USR1", number(job))
    assert job.end() == 0, job.shown()
    assert "chief | saved, requeue=1\n" in job.stdout
    assert "the job stopped at a checkpoint to be requeued" in job.stdout
    assert "chief | on from 34\n" in job.stdout
    assert "a job put back into the queue" in job.stderr
    assert not job.left(), job.shown()
    # The log of the second start follows that of the first.
    assert (tmp_path / "logs" / "chief-0.log").read_text() == "begun\nsaved, requeue=1\non from 34\n"


def test_a_job_whose_node_is_lost_continues_on_another_one(
    make_cluster: Any, start: Any, tmp_path: Path, home: dict[str, str]
) -> None:
    cluster = make_cluster()
    program = """
        echo "$CSRUN_ROLE on $SLURMD_NODENAME"
        [ -e again ] || exec sleep 1000
    """
    job = start(
        cluster,
        *("--use-sbatch", "--requeue", "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", program),
        env=home,
    )
    job.wait_for("worker 0 | worker on cs-node", "chief | chief on cs-node1")
    (lost,) = re.findall(r"worker 0 \| worker on (cs-node\d)", job.stdout)
    (tmp_path / "again").touch()
    cluster.kill_node(lost)
    assert job.end(limit_s=90) == 0, job.shown()
    assert f"worker 0 on {lost} is lost" in job.stdout
    nodes = re.findall(r"worker 0 \| worker on (cs-node\d)", job.stdout)
    assert len(nodes) == 2
    assert nodes[1] != lost


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--use-sbatch", "--launcher=local"], 2, "--use-sbatch with --launcher=local"),
        (["--requeue", "--total-nodes=1"], 2, "--requeue without --use-sbatch"),
        (["--use-sbatch", "--partition=nope"], 2, "no partition 'nope'"),
        (["--use-sbatch", "--dependency=after the rain", "--total-nodes=1"], 2, "dependency cannot be used"),
        (["--use-sbatch", "--time=never", "--total-nodes=1"], 2, "--time: got 'never'"),
        (["--use-sbatch", "--log-dir=back\\slash", "--total-nodes=1"], 2, "without a backslash"),
        (["--use-sbatch", "--time=1", "--warn-before=60"], 2, "as soon as it starts"),
        (["--no-follow"], 2, "--no-follow without --use-sbatch"),
        (["--warn-before=9"], 2, "--warn-before without --use-sbatch"),
        (["--use-sbatch", "--warn-before=-1"], 2, "--warn-before: got '-1'"),
    ],
)
def test_jobs_that_cannot_be_submitted_are_refused_and_leave_nothing(
    cluster: Any, run: Any, words: list[str], code: int, message: str
) -> None:
    job = run(cluster, *words, "true")
    assert job.process.returncode == code, job.shown()
    assert message in job.stderr
    assert "Submitted" not in job.stdout


def test_a_batch_job_submitted_inside_of_an_allocation_has_its_own(cluster: Any, run: Any) -> None:
    inside = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "cs-node4", "SLURM_NTASKS": "9", **os.environ}
    job = run(
        cluster,
        *("--use-sbatch", "--total-nodes=1", "--tasks-per-node=1", "sh", "-c", "echo on $SLURMD_NODENAME"),
        env={name: text for name, text in inside.items() if name.startswith("SLURM_")},
    )
    assert job.process.returncode == 0, job.shown()
    assert "chief | on cs-node1" in job.stdout
