"""However a job on a cluster ends: its exit code says how, and nothing of it is left on any node."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

HANG = 'echo "ready $CSRUN_RANK"; exec sleep 1000'
DEAF = 'trap "" TERM INT; echo "ready $CSRUN_RANK"; while :; do sleep 1000; done'
DAEMON = (
    "(trap '' TERM INT HUP; setsid sh -c 'echo \"daemon $CSRUN_RANK\"; while :; do sleep 1000; done' &) ; "
)


def ready(count: int) -> list[str]:
    return [f"ready {rank}" for rank in range(count)]


def exits(folder: Path) -> dict[int, dict[str, Any]]:
    """The exit records by rank."""
    records = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    return {record["rank"]: record for record in records}


def agent_of(job: Any, rank: int) -> int:
    """Return the agent of a task: the parent of its process, and of daemons that it has left."""
    pids = job.pids(f"CSRUN_RANK={rank}")
    (agent,) = {parent(pid) for pid in pids} - set(pids)
    return agent


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def test_the_first_failing_task_ends_the_job_with_its_code_and_last_lines(
    cluster: Any, wait: Any, run: Any, tmp_path: Path
) -> None:
    (tmp_path / "logs" / "exits").mkdir(parents=True)
    (tmp_path / "logs" / "exits" / "rank-9.json").write_text("of a job before")
    fail = 'seq 100; echo "no more data" >&2; exit 7'
    job = run(
        cluster,
        *("--total-nodes=4", "--tasks-per-node=1", "--log-dir=logs"),
        *("sh", "-c", f'[ "$CSRUN_RANK" = 2 ] || {{ {HANG}; }}; {fail}'),
    )
    assert job.process.returncode == 7
    assert (
        "csrun_wse: worker 1 on cs-node3 failed with exit code 7; its last lines (all of them: "
        "logs/worker-1.log):\n" in job.stderr
    )
    assert "\n    99\n    100\n    no more data\n" in job.stderr
    assert "    81\n" not in job.stderr
    assert "Exited with exit code" not in job.stderr  # srun's words, which say less
    assert (tmp_path / "logs" / "worker-1.log").read_text().endswith("99\n100\nno more data\n")
    records = exits(tmp_path / "logs" / "exits")
    assert {rank: record["exit_code"] for rank, record in records.items()} == {0: 143, 1: 143, 2: 7, 3: 143}
    assert records[2]["node"] == "cs-node3"
    assert records[2]["reason"] == "exited"
    assert records[0]["reason"] == "ended by the launcher"
    assert json.loads((tmp_path / "logs" / "job.json").read_text())["exit_code"] == 7
    wait(lambda: not cluster.jobs())  # Slurm may be cleaning up still


def test_a_task_killed_by_a_signal_fails_the_job(cluster: Any, run: Any, tmp_path: Path) -> None:
    job = run(
        cluster,
        *("--total-nodes=2", "--tasks-per-node=1", "--log-dir=logs"),
        *("sh", "-c", f'[ "$CSRUN_RANK" = 0 ] || kill -9 $$; {HANG}'),
    )
    assert job.process.returncode == 137
    assert "worker 0 on cs-node2 failed with exit code 137 (SIGKILL" in job.stderr
    assert exits(tmp_path / "logs" / "exits")[1]["signal"] == 9


def test_daemons_of_a_task_end_with_the_job(cluster: Any, run: Any) -> None:
    job = run(
        cluster,
        *("--total-nodes=2", "--tasks-per-node=1", "--grace-period=0.3"),
        *("sh", "-c", f"{DAEMON} exit 0"),
    )
    assert job.process.returncode == 0, job.shown()


def test_a_killed_agent_is_noticed_and_its_task_ends_with_it(
    cluster: Any, wait: Any, start: Any, tmp_path: Path
) -> None:
    job = start(
        cluster,
        *("--total-nodes=4", "--tasks-per-node=1", "--log-dir=logs", "--grace-period=1"),
        # The last line has no end.
        *("sh", "-c", f'echo "line of $CSRUN_RANK"; {DAEMON} {DEAF.replace("echo", "printf")}'),
    )
    job.wait_for(*ready(4))
    os.kill(agent_of(job, 3), signal.SIGKILL)
    assert job.end() == 1
    assert "worker 2 on cs-node4 is lost: its connection broke; its last lines" in job.stderr
    assert "    line of 3\n" in job.stderr
    assert re.search("    ready 3(daemon 3)?\n", job.stderr)  # the daemon may be late to write its line
    assert exits(tmp_path / "logs" / "exits")[3]["reason"] == "lost: its connection broke"
    wait(lambda: not job.left())  # the guard of the killed agent ends the task on its node
    wait(lambda: not cluster.jobs())  # Slurm may be cleaning up still


def test_a_killed_step_daemon_which_srun_never_notices(cluster: Any, start: Any, wait: Any) -> None:
    job = start(cluster, "--total-nodes=4", "--tasks-per-node=1", "--grace-period=1", "sh", "-c", HANG)
    job.wait_for(*ready(4))
    os.kill(parent(agent_of(job, 1)), signal.SIGKILL)
    job.wait_for("worker 0 on cs-node2 is lost: Slurm's daemon there was killed")
    assert job.end() == 1
    wait(lambda: not job.left())  # the agent without a daemon ends its task by itself
    wait(lambda: not cluster.jobs())


def test_a_killed_srun_ends_the_job(cluster: Any, start: Any, wait: Any) -> None:
    job = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "--grace-period=1", "sh", "-c", HANG)
    job.wait_for(*ready(2))
    children = [pid for pid in job.left() if parent(pid) == job.process.pid]
    (srun,) = [pid for pid in children if command_line(pid).startswith(b"srun\0")]
    os.kill(srun, signal.SIGKILL)
    assert job.end() in (1, 137, 143)  # we end the tasks, or Slurm does, which does not wait long
    wait(lambda: not job.left())  # Slurm kills one process after the other
    wait(lambda: not cluster.jobs())


def test_a_node_without_power_is_noticed(make_cluster: Any, start: Any) -> None:
    cluster = make_cluster(4)
    command = ("--total-nodes=4", "--tasks-per-node=1", "--grace-period=1", "sh", "-c", HANG)
    job = start(cluster, *command, env={"CS_PEER_TIMEOUT_S": "6"})
    job.wait_for(*ready(4))
    cluster.kill_node("cs-node3")
    job.wait_for("worker 1 on cs-node3 is lost")
    assert job.end() == 1
    assert not job.left()


def test_a_node_that_answers_no_more_is_noticed(cluster: Any, start: Any) -> None:
    command = ("--total-nodes=2", "--tasks-per-node=1", "--grace-period=1", "sh", "-c", HANG)
    job = start(cluster, *command, env={"CS_PEER_TIMEOUT_S": "6"})
    job.wait_for(*ready(2))
    agent = agent_of(job, 1)
    os.kill(agent, signal.SIGSTOP)
    job.wait_for("worker 0 on cs-node2 has not answered for 4 s; it counts as lost after 6 s")
    os.kill(agent, signal.SIGCONT)
    job.wait_for("worker 0 on cs-node2 answers again after")
    os.kill(agent, signal.SIGSTOP)
    job.wait_for("worker 0 on cs-node2 is lost: no heartbeat for")
    assert job.end() == 1
    assert not job.left()


def test_a_killed_launcher_leaves_nothing_on_any_node(cluster: Any, start: Any, wait: Any) -> None:
    job = start(
        cluster, "--total-nodes=4", "--tasks-per-node=2", "--grace-period=1", "sh", "-c", f"{DAEMON} {DEAF}"
    )
    job.wait_for(*ready(8), *(f"daemon {rank}" for rank in range(8)))
    assert len(job.left()) > 30
    job.signal(signal.SIGKILL)
    assert job.end() == -signal.SIGKILL
    wait(lambda: not job.left(), timeout_s=10.0)
    wait(lambda: not cluster.jobs())


def test_scancel_ends_the_job(cluster: Any, start: Any, wait: Any) -> None:
    tidy = 'trap "echo got TERM; exit 0" TERM; echo "ready $CSRUN_RANK"; while :; do sleep 0.05; done'
    job = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", tidy)
    job.wait_for(*ready(2))
    cluster.run("scancel", *{number.partition("+")[0] for number in cluster.jobs()})
    assert job.end() == 143
    assert "Slurm has asked" in job.stderr
    assert "the job was terminated by its scheduler; logs:" in job.stderr
    assert job.stdout.count("got TERM") == 2
    assert not job.left()
    wait(lambda: not cluster.jobs())


@pytest.mark.parametrize(
    ("signum", "code", "seen"), [(signal.SIGINT, 130, "INT"), (signal.SIGTERM, 143, "TERM")]
)
def test_a_signal_to_the_launcher_ends_the_tasks_on_all_nodes(
    cluster: Any, wait: Any, start: Any, signum: int, code: int, seen: str
) -> None:
    tidy = (
        'for s in INT TERM; do trap "echo got $s; exit 0" $s; done; '
        'echo "ready $CSRUN_RANK"; while :; do sleep 0.05; done'
    )
    job = start(cluster, "--total-nodes=3", "--tasks-per-node=1", "sh", "-c", f"setsid sleep 1000 & {tidy}")
    job.wait_for(*ready(3))
    job.signal(signum)
    assert job.end() == code
    assert job.stdout.count(f"got {seen}") == 3
    assert f"the job was terminated by {signal.Signals(signum).name}" in job.stderr
    assert not job.left()
    wait(lambda: not cluster.jobs())  # Slurm may be cleaning up still


def test_ctrl_c_withdraws_a_job_that_waits(cluster: Any, start: Any, wait: Any) -> None:
    first = start(cluster, "--total-nodes=4", "--tasks-per-node=1", "sh", "-c", HANG)
    first.wait_for(*ready(4))
    second = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", HANG)
    second.wait_for("queued and waiting")
    second.signal(signal.SIGINT)
    assert second.end() == 130
    assert not second.left()
    first.signal(signal.SIGTERM)
    assert first.end() == 143
    wait(lambda: not cluster.jobs())


def test_a_task_that_ignores_sigterm_is_killed_after_the_grace_period(cluster: Any, start: Any) -> None:
    job = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "--grace-period=0.5", "sh", "-c", DEAF)
    job.wait_for(*ready(2))
    job.signal(signal.SIGTERM)
    assert job.end() == 143
    assert "chief, worker 0 did not end within 0.5 s: killing" in job.stderr
    assert not job.left()


def test_a_controller_killed_in_the_middle_does_not_end_the_job(
    make_cluster: Any, start: Any, tmp_path: Path
) -> None:
    cluster = make_cluster(2)
    wait = 'echo "ready $CSRUN_RANK"; until [ -e go ]; do sleep 0.05; done; echo done'
    job = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", wait)
    job.wait_for(*ready(2))
    cluster.kill_daemon("slurmctld")
    (tmp_path / "go").touch()
    assert job.end() == 0, job.shown()
    assert job.stdout.count("done") == 2
    assert not job.left()
    cluster.start_controller()


def test_without_munge_the_reason_is_said(make_cluster: Any, run: Any) -> None:
    cluster = make_cluster(1)
    cluster.kill_daemon("munged")
    job = run(cluster, "--total-nodes=1", "true")
    cluster.start_munge()
    assert job.process.returncode == 1
    assert "Slurm's authentication does not work on this machine" in job.stderr


def test_without_a_controller_the_reason_is_said(make_cluster: Any, run: Any) -> None:
    cluster = make_cluster(1)
    cluster.kill_daemon("slurmctld")
    job = run(cluster, "--total-nodes=1", "true")
    cluster.start_controller()
    assert job.process.returncode == 1
    assert "the Slurm controller does not answer" in job.stderr


def test_a_waiting_job_that_is_cancelled_reports_it(cluster: Any, start: Any, wait: Any) -> None:
    first = start(cluster, "--total-nodes=4", "--tasks-per-node=1", "sh", "-c", HANG)
    first.wait_for(*ready(4))
    second = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", HANG)
    second.wait_for("queued and waiting")
    waiting = cluster.run("squeue", "-h", "-t", "PENDING", "-o", "%A").split()
    cluster.run("scancel", waiting[0])
    assert second.end() == 143
    assert "was cancelled before its tasks were started" in second.stderr
    assert not second.left()
    first.signal(signal.SIGTERM)
    assert first.end() == 143
    wait(lambda: not cluster.jobs())


def test_a_killed_launcher_withdraws_a_job_that_waits(cluster: Any, start: Any, wait: Any) -> None:
    first = start(cluster, "--total-nodes=4", "--tasks-per-node=1", "sh", "-c", HANG)
    first.wait_for(*ready(4))
    second = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", HANG)
    second.wait_for("queued and waiting")
    second.signal(signal.SIGKILL)
    wait(lambda: not cluster.run("squeue", "-h", "-t", "PENDING"), timeout_s=10.0)
    wait(lambda: not second.left())
    first.signal(signal.SIGTERM)
    assert first.end() == 143
    wait(lambda: not cluster.jobs())


def test_a_preempted_job_ends_with_the_reason(make_cluster: Any, start: Any, wait: Any) -> None:
    cluster = make_cluster(
        2,
        extra="PreemptType=preempt/partition_prio\nPreemptMode=CANCEL",
        partitions="PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP",
    )
    tidy = 'trap "echo got TERM; exit 0" TERM; echo "ready $CSRUN_RANK"; while :; do sleep 0.05; done'
    job = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", tidy)
    job.wait_for(*ready(2))
    cluster.run(
        "sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--wrap=true", "--output=/dev/null"
    )
    assert job.end() == 143
    assert "Slurm has asked" in job.stderr
    assert not job.left()
    wait(lambda: not cluster.jobs())


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_time_limit_ends_the_job_with_the_reason(make_cluster: Any, start: Any) -> None:
    """Slurm counts in minutes and is generous: one minute may become two."""
    cluster = make_cluster(2, extra="OverTimeLimit=0")
    job = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "--time=1", "sh", "-c", HANG)
    job.wait_for(*ready(2))
    assert job.end(limit_s=200.0) == 143
    assert "Slurm has asked" in job.stderr
    assert "Slurm's reason: time limit" in job.stderr
    assert not job.left()


def test_a_task_that_cannot_come_up_does_not_leave_the_others_waiting(
    make_cluster: Any, run: Any, tmp_path: Path
) -> None:
    """A prolog that ends one task before its agent starts."""
    prolog = tmp_path / "prolog"
    prolog.write_text('#!/bin/sh\n[ "$SLURM_PROCID" = 1 ] && exit 1\nexit 0\n')
    prolog.chmod(0o755)
    cluster = make_cluster(2, extra=f"TaskProlog={prolog}")
    job = run(cluster, "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", HANG)
    assert job.process.returncode == 1
    assert "worker 0 did not start with the others within 5 s" in job.stderr


def test_a_task_whose_node_is_slow_joins_late(make_cluster: Any, run: Any, tmp_path: Path) -> None:
    prolog = tmp_path / "prolog"
    prolog.write_text('#!/bin/sh\n[ "$SLURM_PROCID" = 1 ] && sleep 12\nexit 0\n')
    prolog.chmod(0o755)
    cluster = make_cluster(2, extra=f"TaskProlog={prolog}")
    job = run(cluster, "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", 'echo "ready $CSRUN_RANK"')
    assert job.process.returncode == 0, job.shown()
    assert "waiting for worker 0, for 1" in job.stderr
    assert "s: 1 of 2 tasks have come; the job ends after 600 s\n" in job.stderr
    assert "worker 0 | ready 1" in job.stdout
