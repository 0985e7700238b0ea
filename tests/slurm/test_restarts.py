"""Workers that die on a node and are restarted there by their agent."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from tests.systems import running_system

PROGRAM = Path(__file__).parents[1] / "faults" / "run" / "faulty_program.py"

CHIEF = '[ "$CSRUN_RANK" = 0 ] && { until [ -e go ]; do sleep 0.02; done; exit 0; }; '
FIRST = '[ "$CSRUN_RESTARTS" ] || '
FLAGS = ("--total-nodes=2", "--tasks-per-node=1", "--log-dir=logs", "--grace-period=1")


def records(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entry of worker 0 in job.json, and its exit record."""
    job = json.loads((folder / "logs" / "job.json").read_text())
    return job["tasks"][1], json.loads((folder / "logs" / "exits" / "rank-1.json").read_text())


def test_a_killed_worker_is_restarted_on_its_node(cluster: Any, run: Any, tmp_path: Path) -> None:
    job = run(
        cluster,
        *(*FLAGS, "--max-restarts=2", "sh", "-c"),
        CHIEF + f'echo "life $CSRUN_RESTARTS of rank $CSRUN_RANK"; {FIRST} kill -9 $$; touch go',
    )
    assert job.process.returncode == 0, job.shown()
    assert (
        "csrun_wse: worker 0 on cs-node2 was killed by SIGKILL (as the kernel does when memory runs out); "
        "restart 1 of 2 in 1 s\n" in job.stderr
    )
    assert (tmp_path / "logs" / "worker-0.log").read_text() == "life  of rank 1\nlife 1 of rank 1\n"
    task, exit_record = records(tmp_path)
    assert (task["restarts"], task["exit_code"], task["state"]) == (1, 0, "ended")
    assert (exit_record["restarts"], exit_record["exit_code"]) == (1, 0)
    assert [end["exit_code"] for end in exit_record["earlier_ends"]] == [137]


def test_a_worker_that_always_fails_ends_the_job(cluster: Any, run: Any, tmp_path: Path) -> None:
    job = run(cluster, *FLAGS, "--max-restarts=1", "sh", "-c", f"{CHIEF} echo dying; exit 7")
    assert job.process.returncode == 7, job.shown()
    assert "worker 0 on cs-node2 ended with exit code 7; restart 1 of 1 in 1 s" in job.stderr
    assert "worker 0 on cs-node2 failed with exit code 7 after 1 restart; its last lines" in job.stderr
    task, exit_record = records(tmp_path)
    assert (task["restarts"], exit_record["restarts"], exit_record["exit_code"]) == (1, 1, 7)


def test_processes_that_a_dead_worker_has_left_end_before_its_restart(
    cluster: Any, run: Any, tmp_path: Path
) -> None:
    child = "(trap '' TERM HUP; setsid sh -c 'echo $$ >new; mv new pid; exec sleep 1000' &) ; "
    wait = "until [ -e pid ]; do sleep 0.02; done; kill -9 $$; "
    job = run(
        cluster,
        *(*FLAGS, "--max-restarts=1", "sh", "-c"),
        f'{CHIEF} {FIRST} {{ {child} {wait} }}; kill -0 "$(cat pid)" 2>&1; touch go',
    )
    assert job.process.returncode == 0, job.shown()
    assert "No such process" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_a_job_that_is_ended_restarts_nothing(cluster: Any, start: Any, tmp_path: Path) -> None:
    job = start(cluster, *FLAGS, "--max-restarts=3", "sh", "-c", f"{CHIEF} exit 7")
    job.wait_for("restart 2 of 3")
    job.signal(signal.SIGTERM)
    assert job.end() == 143
    assert "restart 3" not in job.stderr
    task, exit_record = records(tmp_path)
    assert (task["state"], task["exit_code"], exit_record["exit_code"]) == ("ended", 7, 7)


def test_a_node_lost_before_a_restart_ends_the_job(
    cluster: Any, start: Any, wait: Any, tmp_path: Path
) -> None:
    progress = {"step": 40, "first_step": 0, "last_step": 100, "model_dir": "m", "checkpoint_step": 30}
    (tmp_path / "progress.json").write_text(json.dumps(progress))
    job = start(
        cluster,
        *(*FLAGS, "--max-restarts=3", "sh", "-c"),
        '[ "$CSRUN_RANK" = 0 ] && { cp progress.json "$CSRUN_LOG_DIR"; exec sleep 1000; }; exit 7',
    )
    job.wait_for("restart 2 of 3")
    for pid in job.pids("SLURM_PROCID=1"):  # the agent and its guard: the task has no process now
        os.kill(pid, signal.SIGKILL)
    assert job.end() == 1
    assert "worker 0 on cs-node2 is lost" in job.stderr
    assert (
        "csrun_wse: training was at global step 40 of 100; its newest checkpoint is of step 30" in job.stderr
    )
    assert "csrun_wse: to continue: csrun_wse --total-nodes=2" in job.stderr
    wait(lambda: not cluster.jobs())


def test_a_worker_killed_at_a_step_changes_no_bit_of_the_training(
    cluster: Any, run: Any, tmp_path: Path
) -> None:
    (tmp_path / "system").mkdir()
    states = []
    with running_system(tmp_path / "system") as system:
        for deaths in ("", "0:20 1:30"):
            folder = tmp_path / f"job{len(states)}"
            job = run(
                cluster,
                *("--total-nodes=3", "--tasks-per-node=1", f"--log-dir={folder}", "--max-restarts=2"),
                *("python", str(PROGRAM), system.address, str(folder / "model_dir"), "80"),
                env={"DEATHS": deaths, "COMPILE_DIR": str(tmp_path / "artifacts")},
            )
            assert job.process.returncode == 0, job.shown()
            assert ("restart 2 of 2 in 2 s" in job.stderr) == bool(deaths)
            with np.load(folder / "model_dir" / "state.npz") as state:
                states.append({name: state[name].tobytes() for name in state})
    assert states[0] == states[1]
    exit_record = json.loads((folder / "exits" / "rank-2.json").read_text())
    assert [end["exit_code"] for end in exit_record["earlier_ends"]] == [137, 137]
