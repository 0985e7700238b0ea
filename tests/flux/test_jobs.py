"""Jobs on a real Flux instance: every command, every way in which a job can end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.flux.instance import Site, until

HOLD = 'echo "held on $CSRUN_NODE"; while [ ! -e go ]; do sleep 0.05; done; echo "let go"'
SIX = ("--total-nodes=3", "--tasks-per-node=2", "--log-dir=logs")


def pids(marker: str) -> list[int]:
    """Living processes with a variable in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_tasks_get_their_roles_and_nodes(cluster: Site) -> None:
    script = 'echo "$CSRUN_ROLE $CSRUN_TASK_INDEX $CSRUN_NODE $FLUX_TASK_RANK"'
    done = cluster.run("csrun_wse", *SIX, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert sorted(line.partition("| ")[2] for line in done.stdout.splitlines()) == [
        "chief 0 node1 0",
        "worker 0 node1 1",
        "worker 1 node2 2",
        "worker 2 node2 3",
        "worker 3 node3 4",
        "worker 4 node3 5",
    ]
    record = cluster.record()
    assert (record["launcher"], record["exit_code"]) == ("flux", 0)
    assert str(record["scheduler_job_id"]).startswith("f")
    shown = cluster.run("csrun", "status", str(record["job_id"])).stdout
    assert f"(Flux job {record['scheduler_job_id']})" in shown
    assert "done" in shown


def test_a_chief_may_have_its_node_for_itself(cluster: Site) -> None:
    words = ("--single-task-nodes=1", "--tasks-per-node=2", "--total-nodes=3", "--cyclic")
    done = cluster.run("csrun_wse", *words, "sh", "-c", 'echo "$CSRUN_RANK $CSRUN_NODE"')
    assert done.returncode == 0, done.stderr
    assert sorted(line.partition("| ")[2] for line in done.stdout.splitlines()) == [
        *("0 node1", "1 node2", "2 node3", "3 node2", "4 node3")
    ]


def test_tasks_are_pinned_to_cpus_of_their_own(cluster: Site) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU cannot be divided")
    words = ("--total-nodes=1", "--tasks-per-node=2", "--cpus-per-task=1")
    done = cluster.run("csrun_wse", *words, "sh", "-c", "taskset -p $$")
    masks = {line.rpartition(": ")[2] for line in done.stdout.splitlines()}
    assert len(masks) == 2, done.stdout


def test_the_first_failure_is_the_exit_code_and_ends_the_others(cluster: Site) -> None:
    script = '[ "$CSRUN_RANK" = 3 ] && exit 7; exec sleep 60'
    done = cluster.run("csrun_wse", *SIX, "sh", "-c", script)
    assert done.returncode == 7
    assert "worker 2 on node2 failed with exit code 7" in done.stderr
    assert {task["state"] for task in cluster.record()["tasks"]} == {"ended"}


def test_a_killed_task_ends_the_job(cluster: Site) -> None:
    job = cluster.start(*SIX, "--max-restarts=0", "sh", "-c", HOLD)
    job.wait_for("worker 4 | held on node3")
    until(lambda: cluster.record()["tasks"][5]["pid"])
    os.kill(cluster.record()["tasks"][5]["pid"], signal.SIGKILL)
    assert job.wait() == 137
    assert "worker 4 on node3" in job.text


def test_an_unknown_command_is_refused_before_the_queue(cluster: Site) -> None:
    done = cluster.run("csrun_wse", *SIX, "no-such-program")
    assert done.returncode == 127
    assert "Launching" not in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--total-nodes=4",), "this Flux instance has 3 nodes"),
        (("--queue=nope",), "there is no queue 'nope'"),
        (("--cpus-per-task=5", "--tasks-per-node=2"), "needs 10 cores on a node, and the nodes have 2"),
        (("--time-limit=soon",), "expected minutes, or a number with s, m, h or d"),
    ],
)
def test_what_can_never_run_is_refused(cluster: Site, words: tuple[str, ...], text: str) -> None:
    done = cluster.run("csrun_wse", *words, "true")
    assert done.returncode == 2
    assert text in done.stderr


def test_the_launcher_ends_all_tasks_when_it_is_interrupted(cluster: Site) -> None:
    job = cluster.start(*SIX, "sh", "-c", HOLD)
    job.wait_for("worker 4 | held on node3")
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    assert not pids(f"CSRUN_JOB_ID={cluster.record()['job_id']}")


def test_agents_end_their_tasks_when_the_launcher_is_killed(cluster: Site) -> None:
    job = cluster.start(*SIX, "sh", "-c", HOLD)
    job.wait_for("worker 4 | held on node3")
    marker = f"CSRUN_JOB_ID={cluster.record()['job_id']}"
    job.process.kill()
    job.wait()
    until(lambda: not pids(marker) and not cluster.jobs())


def test_flux_cancel_ends_the_job_and_is_named(cluster: Site) -> None:
    job = cluster.start(*SIX, "sh", "-c", HOLD)
    job.wait_for("worker 4 | held on node3")
    assert cluster.run("flux", "cancel", str(cluster.record()["scheduler_job_id"])).returncode == 0
    assert job.wait() == 143
    assert "Flux has asked" in job.text
    assert "Flux's reason: cancellation" in job.text


def test_csrun_cancel_ends_a_job(cluster: Site) -> None:
    job = cluster.start(*SIX, "sh", "-c", HOLD)
    job.wait_for("worker 4 | held on node3")
    job_id = str(cluster.record()["job_id"])
    assert "running" in cluster.run("csrun", "status", job_id).stdout
    assert cluster.run("csrun", "cancel", job_id).returncode == 0
    assert job.wait() == 143
    assert "cancelled" in cluster.run("csrun", "status", job_id).stdout


def test_a_time_limit_ends_the_job_and_is_named(cluster: Site) -> None:
    job = cluster.start(*SIX, "--time-limit=3s", "sh", "-c", HOLD)
    assert job.wait() != 0
    assert "Flux's reason: time limit" in job.text


def test_a_waiting_job_says_why_and_can_be_withdrawn(cluster: Site) -> None:
    first = cluster.start(*SIX, "sh", "-c", HOLD)
    first.wait_for("held on node1")
    second = cluster.start("--total-nodes=2", "--log-dir=second", "true")
    second.wait_for("waits, place 1: it waits for free nodes; 3 nodes are in use by 1 jobs")
    second.process.send_signal(signal.SIGINT)
    assert second.wait() == 130
    assert cluster.jobs() == ["RUN"]
    third = cluster.start("--total-nodes=2", "--log-dir=third", "true")
    third.wait_for("waits, place 1")
    third.process.kill()  # its guard withdraws the job
    third.wait()
    until(lambda: cluster.jobs() == ["RUN"])
    (cluster.work / "go").touch()
    assert first.wait() == 0


def test_a_job_that_is_cancelled_while_it_waits(cluster: Site) -> None:
    first = cluster.start(*SIX, "sh", "-c", HOLD)
    first.wait_for("held on node1")
    second = cluster.start("--total-nodes=2", "--log-dir=second", "true")
    second.wait_for("waits, place 1")
    waiting = cluster.run("flux", "jobs", "--no-header", "--format={id.f58plain}", "--filter=sched").stdout
    assert cluster.run("flux", "cancel", waiting.strip()).returncode == 0
    assert second.wait() == 143
    assert "was cancelled before its tasks were started" in second.text
    (cluster.work / "go").touch()
    assert first.wait() == 0


def test_a_lost_node_is_noticed(own_instance: Site) -> None:
    job = own_instance.start(*SIX, "sh", "-c", HOLD, CS_PEER_TIMEOUT_S="6")
    job.wait_for("worker 4 | held on node3")
    broker = own_instance.run("flux", "exec", "--rank=2", "flux", "getattr", "broker.pid").stdout
    # The node is switched off: its broker, the shells of its jobs, and their agents stop at once.
    victims = [*pids("CSRUN_FLUX_NODE=node3"), int(broker)]
    start_s = time.monotonic()
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        job.wait_for("on node3 is lost: no heartbeat for")
        assert time.monotonic() - start_s < 20
        assert job.wait() == 1
    finally:
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert {task["state"] for task in own_instance.record()["tasks"][4:]} == {"lost"}
    assert {task["state"] for task in own_instance.record()["tasks"][:4]} == {"ended"}


def test_a_killed_broker_ends_the_job(own_instance: Site) -> None:
    job = own_instance.start(*SIX, "sh", "-c", HOLD)
    job.wait_for("worker 4 | held on node3")
    broker = own_instance.run("flux", "exec", "--rank=2", "flux", "getattr", "broker.pid").stdout
    os.kill(int(broker), signal.SIGKILL)
    # The agents and Flux both notice it within a second, in any order.
    assert job.wait() in (1, 143)
    assert "Flux's daemon there was killed" in job.text or "node failure on node3" in job.text
    assert not pids(f"CSRUN_JOB_ID={own_instance.record()['job_id']}")


def test_a_submitted_job_is_followed_to_its_end(cluster: Site) -> None:
    words = ("--submit", *SIX, "sh", "-c", "echo $CSRUN_ROLE on $CSRUN_NODE; exit 7")
    done = cluster.run("csrun_wse", *words)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("Submitted batch job f")
    assert "worker 4 | worker on node3" in done.stdout
    record = cluster.record()
    assert (record["exit_code"], str(record["scheduler_step_id"]).count(".")) == (7, 1)


def test_a_batch_job_is_asked_for_a_checkpoint_before_its_time_limit(cluster: Site) -> None:
    script = 'trap "echo asked; exit 5" USR1; echo ready; while :; do sleep 0.1; done'
    words = ("--submit", "--time-limit=20s", "--warn-before=15", "--tasks-per-node=1", "sh", "-c", script)
    done = cluster.run("csrun_wse", *words)
    assert "chief | asked" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 5


def test_a_submitted_job_is_cancelled(cluster: Site) -> None:
    done = cluster.run("csrun_wse", "--submit", "--no-follow", *SIX, "sh", "-c", HOLD)
    assert done.returncode == 0, done.stderr
    number = done.stdout.split()[-1]
    until(lambda: "held on node1" in cluster.run("csrun", "logs", number).stdout)
    assert "running" in cluster.run("csrun", "status", number).stdout
    assert cluster.run("csrun", "cancel", number).returncode == 0
    until(lambda: "cancelled" in cluster.run("csrun", "status", number).stdout)


def test_a_batch_job_is_not_put_back_into_the_queue(cluster: Site) -> None:
    done = cluster.run("csrun_wse", "--submit", "--requeue", "true")
    assert done.returncode == 2
    assert "Flux does not put jobs back into the queue" in done.stderr


def test_a_program_runs_on_a_node(cluster: Site) -> None:
    done = cluster.run("csrun_cpu", "sh", "-c", "echo $FLUX_JOB_SIZE; exit 6")
    assert (done.returncode, done.stdout) == (6, "1\n")


def test_programs_that_flux_has_started_find_their_roles(cluster: Site) -> None:
    code = (
        "from csrun.tasks.roles import TaskInfo; t = TaskInfo.from_environment(); "
        "print(t.rank, t.role, t.index, t.num_tasks, t.job_id.startswith('flux-f'))"
    )
    done = cluster.run("flux", "run", "--ntasks=3", "python", "-c", code)
    assert sorted(done.stdout.splitlines()) == [
        "0 chief 0 3 True",
        "1 worker 0 3 True",
        "2 worker 1 3 True",
    ], done.stderr


def test_the_doctor_checks_the_instance_and_its_nodes(cluster: Site) -> None:
    done = cluster.run("csrun", "doctor", "--nodes=3")
    assert done.returncode == 0, done.stdout
    assert "connections      node[1-3] connected back to this machine" in done.stdout
    assert "jobs run on the launcher flux" in done.stdout
    wrong = cluster.run("csrun", "doctor", "--no-probe", CSRUN_FLUX_QUEUE="nope", DEF_NODES="9")
    assert wrong.returncode == 1
    assert "unknown queue 'nope'" in wrong.stdout
    assert "def_nodes is 9, and 3 nodes can be used" in wrong.stdout
