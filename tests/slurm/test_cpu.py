"""csrun_cpu on a cluster: one command on a dedicated node."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .test_steps import STRANGE

LAUNCHER = "--launcher=slurm"
TIDIES = """
import signal, sys, time
def tidy(signum, frame):
    print("got", signum, flush=True)
    time.sleep(0.3)
    print("tidied up", flush=True)
    sys.exit(40 + signum)
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, tidy)
print("ready", flush=True)
time.sleep(1000)
"""


def test_it_runs_on_a_node_with_its_arguments_and_code(cluster: Any, run: Any, tmp_path: Path) -> None:
    show = (
        "import json, os, sys; "
        "print(json.dumps([os.environ['SLURMD_NODENAME'], os.getcwd(), sys.argv[1:]])); sys.exit(5)"
    )
    folder = tmp_path / "a b;c"
    folder.mkdir()
    job = run(cluster, LAUNCHER, "python", "-c", show, *STRANGE, program="csrun_cpu", cwd=folder)
    assert job.process.returncode == 5, job.shown()
    assert json.loads(job.stdout) == ["cs-node1", str(folder), list(STRANGE)]


def test_the_node_of_the_system_gets_no_task(cluster: Any, run: Any) -> None:
    node = {"GRES_NODE": "cs-node1"}
    show = ("sh", "-c", "echo $SLURMD_NODENAME")
    assert run(cluster, *show, program="csrun_cpu", env=node).stdout == "cs-node2\n"
    job = run(cluster, "--exclude_gres=False", *show, program="csrun_cpu", env=node)
    assert job.stdout == "cs-node1\n"


def test_in_place_where_it_is_asked_for_and_inside_a_job(cluster: Any, run: Any) -> None:
    show = ("sh", "-c", "echo [$SLURMD_NODENAME]")
    assert run(cluster, "--alloc-node=False", *show, program="csrun_cpu").stdout == "[]\n"
    salloc = ("salloc", "--nodes=1", "--quiet")
    job = run(cluster, *show, program="csrun_cpu", before=salloc)
    assert job.stdout == "[]\n"  # salloc runs its command on the submitting host
    job = run(cluster, "--alloc_node", "true", *show, program="csrun_cpu", before=salloc)
    assert job.stdout == "[cs-node2]\n"


def test_a_terminal_is_one_on_the_node_too(cluster: Any) -> None:
    launcher = Path(__file__).resolve().parents[2] / "bin" / "csrun_cpu"
    controller, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            [str(launcher), LAUNCHER, "sh", "-c", "tty; echo $SLURMD_NODENAME"],
            env=cluster.environment,
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            os.close(terminal)
            shown = b""
            while b"cs-node" not in shown:
                shown += os.read(controller, 4096)
            assert process.wait(30) == 0
        assert b"/dev/pts/" in shown
    finally:
        os.close(controller)


def test_it_has_all_cpus_of_the_node(cluster: Any, run: Any) -> None:
    job = run(cluster, LAUNCHER, "sh", "-c", "echo $SLURM_CPUS_ON_NODE", program="csrun_cpu")
    assert job.stdout == "4\n", job.shown()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_program_gets_the_signal_and_takes_its_time(
    cluster: Any, start: Any, wait: Any, tmp_path: Path, signum: signal.Signals
) -> None:
    (tmp_path / "tidies.py").write_text(TIDIES)
    job = start(cluster, LAUNCHER, "python", "tidies.py", program="csrun_cpu")
    job.wait_for("ready")
    job.signal(signum)
    assert job.end() == 40 + signum, job.shown()
    assert job.stdout == f"ready\ngot {signum}\ntidied up\n"
    wait(lambda: not job.left())


def test_killed_it_takes_the_program_along(cluster: Any, start: Any, wait: Any) -> None:
    job = start(cluster, LAUNCHER, "sh", "-c", "trap : INT; echo ready; sleep 1000", program="csrun_cpu")
    job.wait_for("ready")
    job.signal(signal.SIGKILL)
    job.end()
    wait(lambda: not job.left())


def test_a_signal_while_it_waits_takes_it_out_of_the_queue(cluster: Any, start: Any) -> None:
    holder = start(cluster, LAUNCHER, "sh", "-c", "echo ready; sleep 1000", program="csrun_cpu")
    holder.wait_for("ready")
    after = f"--dependency=afterany:{cluster.jobs()[-1]}"
    for signum in (signal.SIGINT, signal.SIGHUP):
        job = start(cluster, LAUNCHER, after, "true", program="csrun_cpu")
        job.wait_for("queued and waiting")
        job.signal(signum)
        assert job.end() == 128 + signum, job.shown()
        assert not job.left()
    holder.signal(signal.SIGTERM)
    holder.end()


def test_a_terminal_that_is_closed_hangs_up(cluster: Any, tmp_path: Path) -> None:
    launcher = Path(__file__).resolve().parents[2] / "bin" / "csrun_cpu"
    controller, terminal = pty.openpty()
    program = "trap 'touch hung-up; exit 5' HUP; echo re''ady; while :; do sleep 0.1; done"
    with subprocess.Popen(
        ["setsid", "--ctty", str(launcher), LAUNCHER, "bash", "-c", program],
        env=cluster.environment,
        cwd=tmp_path,
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(terminal)
        shown = b""
        while b"ready" not in shown:
            shown += os.read(controller, 4096)
        os.close(controller)
        assert process.wait(30) == 5
    assert (tmp_path / "hung-up").exists()


def test_layouts_that_cannot_run_are_refused(cluster: Any, run: Any) -> None:
    job = run(cluster, LAUNCHER, "pyhton", program="csrun_cpu")
    assert job.process.returncode == 127
    assert "command not found: 'pyhton'" in job.stderr
    job = run(cluster, LAUNCHER, "--partition=gpu", "true", program="csrun_cpu")
    assert job.process.returncode == 2
    assert "there is no partition 'gpu'; expected one of: all" in job.stderr


def test_without_a_cluster_the_reason_is_said(make_cluster: Any, run: Any) -> None:
    cluster = make_cluster(1)
    cluster.kill_daemon("slurmctld")
    job = run(cluster, LAUNCHER, "true", program="csrun_cpu")
    cluster.start_controller()
    assert job.process.returncode == 1
    assert "the Slurm controller does not answer" in job.stderr


def test_dry_run_shows_the_words_of_srun(cluster: Any, run: Any) -> None:
    job = run(cluster, LAUNCHER, "--dry-run", "--time=5", "echo", "a b", ":", program="csrun_cpu")
    assert job.process.returncode == 0
    assert re.search(
        r"command: srun --disable-status --job-name=\w+-\w{12} --nodes=1 --ntasks=1 --exclusive "
        r"--mpi=none --cpus-per-task=4 --time=5 /bin/sh -c 'exec echo",
        job.stdout,
    )
