"""However a job ends: its exit code says how, and nothing of it is left."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from cs_system.proto import cs_system_pb2, cs_system_pb2_grpc
from cs_system.transport import PROTOCOL_VERSION
from csrun.jobs.supervisor import SAME_INTERRUPT_S
from tests.processes import wait_until

# Runs forever and prints a line first; the rest after `exec` differs.
HANG = 'echo "ready $CSRUN_RANK"; exec sleep 1000'
# A daemon in a new session, adopted by nobody, deaf to polite signals.
DAEMON = (
    "(trap '' TERM INT HUP; setsid sh -c 'echo \"daemon $CSRUN_RANK\"; while :; do sleep 1000; done' &) ; "
)
DEAF = 'trap "" TERM INT; echo "ready $CSRUN_RANK"; while :; do sleep 1000; done'


def ready(*ranks: int, word: str = "ready") -> list[str]:
    return [f"{'chief' if rank == 0 else f'worker {rank - 1}'} | {word} {rank}" for rank in ranks]


def test_the_first_failing_task_ends_the_job_with_its_code_and_last_lines(start: Any, tmp_path: Path) -> None:
    fail = 'seq 100; echo "no more data" >&2; exit 7'
    job = start("--tasks-per-node=3", "sh", "-c", f'[ "$CSRUN_RANK" = 2 ] || {{ {HANG}; }}; {fail}')
    assert job.end() == 7
    assert not job.left()
    assert (
        "csrun_wse: worker 1 failed with exit code 7; its last lines (all of them: logs/worker-1.log):\n"
        in job.stderr
    )
    assert "\n    99\n    100\n    no more data\n" in job.stderr
    assert "    81\n" not in job.stderr
    assert "terminating chief, worker 0" in job.stderr
    assert (tmp_path / "logs" / "worker-1.log").read_text().endswith("99\n100\nno more data\n")
    states = json.loads((tmp_path / "logs" / "job.json").read_text())
    assert states["exit_code"] == 7
    assert [task["exit_code"] for task in states["tasks"]] == [143, 143, 7]


def test_a_worker_killed_by_a_signal_fails_the_job(start: Any) -> None:
    job = start("--tasks-per-node=2", "sh", "-c", f'[ "$CSRUN_RANK" = 0 ] || kill -9 $$; {HANG}')
    assert job.end() == 137
    assert (
        "worker 0 failed with exit code 137 (SIGKILL, as the kernel does when memory runs out)" in job.stderr
    )
    assert "it has written nothing" in job.stderr
    assert not job.left()


PROGRESS = {
    "step": 40,
    "first_step": 0,
    "last_step": 100,
    "model_dir": "model_dir",
    "checkpoint_step": 30,
    "checkpoint": "model_dir/checkpoint_30.mdl",
}


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("chief: kill -9 $$", 137),
        ("chief: exit 1", 1),
        ("worker: kill -9 $$", 137),
        ("worker: exit 2", 2),
        ("signal", 143),
    ],
)
@pytest.mark.parametrize("resumes", [True, False])
def test_after_any_failure_of_a_training_run_the_launcher_says_how_it_continues(
    start: Any, tmp_path: Path, end: str, code: int, resumes: bool
) -> None:
    (tmp_path / "progress.json").write_text(json.dumps({**PROGRESS, "resumes": resumes}))
    task, _, how = end.partition(": ")
    record = '[ "$CSRUN_RANK" = 0 ] && cp progress.json "$CSRUN_LOG_DIR" && touch recorded; '
    wait = "until [ -e recorded ]; do sleep 0.02; done; "
    dies = {"chief": 0, "worker": 1}.get(task, -1)
    job = start(
        *("--tasks-per-node=2", "--grace-period=1", "sh", "-c"),
        f'{record}{wait}[ "$CSRUN_RANK" = {dies} ] && {{ {how or "true"}; }}; {HANG}',
    )
    if end == "signal":
        job.wait_for_lines(*ready(0, 1))
        job.signal(signal.SIGTERM)
    assert job.end() == code
    hint = "training was at global step 40 of 100; its newest checkpoint is of step 30"
    record = json.loads((tmp_path / "logs" / "job.json").read_text())["resume"]
    assert (record["step"], record["checkpoint_step"]) == (40, 30)
    assert record["checkpoint"] == "model_dir/checkpoint_30.mdl"
    if resumes:
        assert f"csrun_wse: {hint} (model_dir): the same command resumes from there\n" in job.stderr
        assert "csrun_wse: to continue: csrun_wse --log-dir=logs --tasks-per-node=2 " in job.stderr
        assert record["command"][:2] == ["csrun_wse", "--log-dir=logs"]
    else:
        assert f"csrun_wse: {hint}: start from model_dir/checkpoint_30.mdl to resume\n" in job.stderr
        assert "to continue:" not in job.stderr
        assert record["command"] is None


def test_a_run_that_has_reached_its_end_does_not_continue(start: Any, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text(json.dumps({**PROGRESS, "step": 100}))
    job = start("--tasks-per-node=1", "sh", "-c", 'cp progress.json "$CSRUN_LOG_DIR"; exit 1')
    assert job.end() == 1
    assert "training was at" not in job.stderr
    assert json.loads((tmp_path / "logs" / "job.json").read_text())["resume"] is None


def test_a_task_that_hangs_and_ignores_sigterm_is_killed_after_the_grace_period(start: Any) -> None:
    job = start(
        "--tasks-per-node=3",
        "--grace-period=0.3",
        "sh",
        "-c",
        f'[ "$CSRUN_RANK" = 1 ] && {{ until [ -e go ]; do sleep 0.02; done; exit 3; }}; {DEAF}',
    )
    job.wait_for_lines(*ready(0, 2))
    (job.stderr_path.parent / "go").touch()
    assert job.end() == 3
    assert "chief, worker 1 did not end within 0.3 s: killing" in job.stderr
    assert not job.left()


def test_daemons_of_a_task_end_with_the_job(start: Any) -> None:
    job = start("--tasks-per-node=2", "--grace-period=0.3", "sh", "-c", f"{DAEMON} exit 0")
    assert job.end() == 0
    assert "processes that the tasks left running did not end within 0.3 s: killing" in job.stderr
    assert not job.left()


def test_a_daemon_that_hides_ends_with_the_job(start: Any, tmp_path: Path) -> None:
    hide = "env -i setsid sh -c 'echo $$ >new; mv new pid; exec sleep 1000' & "
    hide += "until [ -e pid ]; do sleep 0.02; done"
    job = start("--tasks-per-node=1", "sh", "-c", hide)
    assert job.end() == 0
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_background_process_that_holds_the_output_does_not_hold_the_job(start: Any) -> None:
    job = start("--tasks-per-node=1", "sh", "-c", "sleep 1000 & echo done")
    job.wait_for_lines("chief | done")
    assert job.end() == 0
    assert "killing" not in job.stderr, "`sleep` ends at the first signal"
    assert not job.left()


@pytest.mark.parametrize(
    ("signum", "code", "seen"),
    [(signal.SIGINT, 130, "INT"), (signal.SIGTERM, 143, "TERM"), (signal.SIGHUP, 129, "TERM")],
)
def test_a_signal_to_the_launcher_ends_the_whole_tree(start: Any, signum: int, code: int, seen: str) -> None:
    tidy = (
        'for s in INT TERM; do trap "echo got $s; exit 0" $s; done; '
        'echo "ready $CSRUN_RANK"; while :; do sleep 0.05; done'
    )
    job = start("--tasks-per-node=2", "--grace-period=2", "sh", "-c", f"setsid sleep 1000 & {tidy}")
    job.wait_for_lines(*ready(0, 1))
    job.signal(signum)
    job.wait_for_lines(f"chief | got {seen}", f"worker 0 | got {seen}")
    assert job.end() == code
    assert f"the job was terminated by {signal.Signals(signum).name}; logs: logs" in job.stderr
    assert not job.left()


def test_the_second_ctrl_c_kills_immediately(start: Any) -> None:
    job = start("--tasks-per-node=2", "--grace-period=1000", "sh", "-c", DEAF)
    job.wait_for_lines(*ready(0, 1))
    job.signal(signal.SIGINT)
    job.wait_for_stderr("SIGINT: terminating chief, worker 0")

    time.sleep(SAME_INTERRUPT_S)
    job.signal(signal.SIGINT)
    assert job.end() == 130
    assert "Ctrl-C again: killing" in job.stderr
    assert not job.left()


def test_ctrl_c_at_a_terminal_ends_the_job(start: Any) -> None:
    controller, terminal = pty.openpty()
    try:
        launcher = Path(__file__).resolve().parents[3] / "bin" / "csrun_wse"
        at_terminal = ("setsid", "--ctty", str(launcher))
        job = start("--tasks-per-node=2", "sh", "-c", DEAF, program=at_terminal, stdin=terminal)
        job.wait_for_lines(*ready(0, 1))

        # Not more strokes: one that arrives while the launcher ends would kill Python itself.
        os.write(controller, b"\x03")
        job.wait_for_stderr("SIGINT: terminating chief, worker 0")
        time.sleep(SAME_INTERRUPT_S)
        os.write(controller, b"\x03")
        assert job.end() == 130
        assert not job.left()
    finally:
        os.close(controller)
        os.close(terminal)


def test_a_killed_launcher_leaves_nothing_behind(start: Any) -> None:
    job = start("--tasks-per-node=2", "sh", "-c", f"{DAEMON} {DEAF}")
    job.wait_for_lines(*ready(0, 1), *ready(0, 1, word="daemon"))
    assert len(job.left()) > 5
    job.signal(signal.SIGKILL)
    assert job.end() == -signal.SIGKILL
    wait_until(lambda: not job.left())


def test_workers_that_stay_after_the_chief_are_ended_and_the_job_is_well(start: Any) -> None:
    job = start(
        "--tasks-per-node=3", "--wind-down=0.3", "sh", "-c", f'[ "$CSRUN_RANK" = 0 ] || {{ {HANG}; }}'
    )
    assert job.end() == 0
    assert "the chief has finished; waiting up to 0.3 s for worker 0, worker 1" in job.stderr
    assert "worker 0, worker 1 did not end within 0.3 s after the chief: terminating" in job.stderr
    assert "the job completed" in job.stderr
    assert not job.left()


def test_workers_may_be_done_long_before_the_chief(start: Any, tmp_path: Path) -> None:
    wait_and_end = "until [ -e go ]; do sleep 0.02; done; echo last"
    wait = f'[ "$CSRUN_RANK" = 0 ] && {{ echo "ready 0"; {wait_and_end}; }}; echo bye'
    job = start("--tasks-per-node=2", "--wind-down=0", "sh", "-c", wait)
    job.wait_for_lines("chief | ready 0", "worker 0 | bye")
    (tmp_path / "go").touch()
    job.wait_for_lines("chief | last")
    assert job.end() == 0


class FreeSystem(cs_system_pb2_grpc.CsSystemServicer):
    """Says that it is free, and nothing else."""

    def Info(self, request: Any, context: Any) -> Any:  # noqa: N802 - a name of the control plane
        return cs_system_pb2.SystemInfo(
            name="free", protocol=PROTOCOL_VERSION, state="idle", fabric_json="{}"
        )


def test_a_system_that_goes_away_ends_the_job(start: Any) -> None:
    system = grpc.server(ThreadPoolExecutor(1))
    cs_system_pb2_grpc.add_CsSystemServicer_to_server(FreeSystem(), system)
    port = system.add_insecure_port("127.0.0.1:0")
    address = f"127.0.0.1:{port}"
    system.start()
    try:
        job = start("--tasks-per-node=2", "sh", "-c", HANG, "sh", "--cs_ip", address)
        job.wait_for_lines(*ready(0, 1))
    finally:
        system.stop(0).wait()
    with socket.create_server(("127.0.0.1", port)) as seen:
        seen.accept()[0].close()
    job.wait_for_stderr(f"the CS system at {address} is gone")
    assert job.end() == 1
    assert "csrun_wse: terminating chief, worker 0\n" in job.stderr
    assert "the job failed with exit code 1" in job.stderr
    assert not job.left()


def test_signals_for_checkpoints_reach_programs_that_ask_for_them(start: Any) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: print('checkpoint', flush=True)); "
        "print('ready', flush=True); time.sleep(1000)"
    )
    job = start("--tasks-per-node=2", "sh", "-c", f'python -c "{program}"; true')
    job.wait_for_lines("chief | ready", "worker 0 | ready")
    job.signal(signal.SIGUSR1)
    job.wait_for_lines("chief | checkpoint", "worker 0 | checkpoint")
    job.signal(signal.SIGTERM)
    assert job.end() == 143


def test_a_job_under_nohup_survives_the_hangup(start: Any, tmp_path: Path) -> None:
    wait = 'echo "ready $CSRUN_RANK"; until [ -e go ]; do sleep 0.02; done; echo bye'
    launcher = Path(__file__).resolve().parents[3] / "bin" / "csrun_wse"
    job = start("--tasks-per-node=1", "sh", "-c", wait, program=("nohup", str(launcher)))
    job.wait_for_lines("chief | ready 0")
    job.signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    job.wait_for_lines("chief | bye")
    assert job.end() == 0


def test_too_many_tasks_for_the_machine_start_none(start: Any) -> None:
    launcher = Path(__file__).resolve().parents[3] / "bin" / "csrun_wse"
    limited = ("sh", "-c", 'ulimit -n 40; exec "$0" "$@"', str(launcher))
    job = start("--tasks-per-node=30", "sleep", "1000", program=limited)
    assert job.end() == 1
    assert "Too many open files" in job.stderr
    assert "start fewer tasks (--tasks-per-node)" in job.stderr
    assert not job.left()
