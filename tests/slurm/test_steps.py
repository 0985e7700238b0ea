"""Environment, output and exit codes of tasks on a cluster."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes import listening_sockets

ROOT = Path(__file__).resolve().parents[2]
STRANGE = (
    "two words",
    "'single' \"double\"",
    "line\nend",
    "; touch hacked",
    "$(touch hacked) `touch hacked` $HOME",
    "größer Ω 漢字",
    "back\\slash",
    ":",
    "--total-nodes=7",
    "*",
    "",
    "%n %j",
)


def lines_of(job: Any, label: str) -> list[str]:
    """The lines of a task, without its prefix."""
    return [line.partition(" | ")[2] for line in job.stdout.splitlines() if line.startswith(f"{label} | ")]


def test_arguments_reach_every_task_as_they_are(cluster: Any, run: Any, tmp_path: Path) -> None:
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    folder = tmp_path / "with blanks; and $(more)"
    folder.mkdir()
    job = run(cluster, "--total-nodes=2", "--tasks-per-node=1", "python", "-c", show, *STRANGE, cwd=folder)
    assert job.process.returncode == 0, job.shown()
    for label in ("chief", "worker 0"):
        assert json.loads(lines_of(job, label)[0]) == list(STRANGE)
    assert not list(tmp_path.rglob("hacked"))


def test_arguments_that_are_no_text(cluster: Any, run: Any, tmp_path: Path) -> None:
    show = "import os, sys; print(os.fsencode(sys.argv[1]).hex())"
    job = run(cluster, "--total-nodes=1", "--tasks-per-node=1", "python", "-c", show, "\udcff\udcfe")
    assert lines_of(job, "chief") == ["fffe"]


def test_the_working_directory_may_have_any_name(cluster: Any, run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a b\n'c' \"d\" ö"
    folder.mkdir()
    job = run(
        cluster, "--total-nodes=2", "--tasks-per-node=1", "--log-dir=my logs", "sh", "-c", "pwd", cwd=folder
    )
    assert job.process.returncode == 0, job.shown()
    assert (folder / "my logs" / "worker-0.log").read_text() == f"{folder}\n"
    assert (folder / "my logs" / "exits" / "rank-1.json").exists()


def test_logs_hold_the_bytes_and_the_terminal_prefixed_lines(cluster: Any, run: Any, tmp_path: Path) -> None:
    script = r'printf "out $CSRUN_RANK\n"; printf "err $CSRUN_RANK\r\n" >&2; printf "\\377no end"'
    job = run(cluster, "--total-nodes=2", "--tasks-per-node=1", "--log-dir=logs", "sh", "-c", script)
    assert job.process.returncode == 0, job.shown()
    assert lines_of(job, "chief") == ["out 0", "err 0", "\\xffno end"]
    assert (tmp_path / "logs" / "chief-0.log").read_bytes() == b"out 0\nerr 0\r\n\xffno end"
    assert "the job completed; logs: logs" in job.stderr


def test_much_output_arrives_whole_and_in_order(cluster: Any, run: Any, tmp_path: Path) -> None:
    """More than the window, the pipes and the sockets hold together."""
    count = 120_000
    job = run(cluster, "--total-nodes=2", "--tasks-per-node=1", "--log-dir=logs", "seq", str(count))
    assert job.process.returncode == 0, job.shown()
    expected = [str(number) for number in range(1, count + 1)]
    for label, log in (("chief", "chief-0.log"), ("worker 0", "worker-0.log")):
        shown = lines_of(job, label)
        # The start of a line that takes a second, on a busy machine, is shown before the line.
        following = [*shown[1:], ""]
        whole = [line for line, after in zip(shown, following, strict=True) if not after.startswith(line)]
        assert whole == expected
        assert (tmp_path / "logs" / log).read_text().splitlines() == expected


@pytest.mark.soak
def test_a_stopped_launcher_holds_the_tasks_and_loses_none(
    cluster: Any, start: Any, tmp_path: Path, wait: Any
) -> None:
    """Ctrl-Z for longer than a silent task is given."""
    pause = 'echo "ready $CSRUN_RANK"; until [ -e go ]; do sleep 0.05; done; echo done'
    job = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", pause)
    job.wait_for("ready 0", "ready 1")
    job.signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        job.process.wait(10)
    job.signal(signal.SIGCONT)
    (tmp_path / "go").touch()
    assert job.end() == 0, job.shown()
    assert job.stdout.count("done") == 2


@pytest.mark.soak
def test_a_job_that_slurm_suspends_is_not_lost(cluster: Any, start: Any, tmp_path: Path, wait: Any) -> None:
    pause = 'echo "ready $CSRUN_RANK"; until [ -e go ]; do sleep 0.05; done; echo done'
    job = start(cluster, "--total-nodes=1", "--tasks-per-node=2", "sh", "-c", pause)
    job.wait_for("ready 0", "ready 1")
    (number,) = cluster.jobs()
    cluster.run("scontrol", "suspend", number)
    with pytest.raises(subprocess.TimeoutExpired):
        job.process.wait(11)
    cluster.run("scontrol", "resume", number)
    (tmp_path / "go").touch()
    assert job.end() == 0, job.shown()


def test_the_environment_of_the_tasks(cluster: Any, run: Any) -> None:
    dirty = {"PYTHONPATH": "/nowhere", "LD_LIBRARY_PATH": "/nowhere", "MINE": "a b", "SLURM_NTASKS": "7"}
    show = 'echo "[$PYTHONPATH][$LD_LIBRARY_PATH][$MINE][$CSRUN_JOB_ID][$SLURM_NTASKS]"; command -v python'
    job = run(cluster, "--total-nodes=1", "--tasks-per-node=1", "sh", "-c", show, env=dirty)
    assert job.process.returncode == 0, job.shown()
    shown, python = lines_of(job, "chief")
    assert "/nowhere" not in shown
    assert "[a b][slurm-" in shown
    assert shown.endswith("[1]")
    assert python.startswith(str(ROOT))
    assert "not passed on to the program: LD_LIBRARY_PATH (" in job.stderr


def test_a_command_that_does_not_exist_waits_in_no_queue(cluster: Any, run: Any) -> None:
    job = run(cluster, "--total-nodes=4", "pyhton", "run.py")
    assert job.process.returncode == 127
    assert "command not found: 'pyhton'" in job.stderr
    assert "Launching" not in job.stderr


def test_a_command_that_a_node_cannot_execute(cluster: Any, run: Any, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    job = run(cluster, "--total-nodes=2", "--tasks-per-node=1", "./script")
    assert job.process.returncode == 126
    assert "cannot execute './script'" in job.stderr
    assert "csrun_wse: cs-node" in job.stderr


def test_signals_for_checkpoints_reach_programs_that_ask_for_them(
    cluster: Any, start: Any, wait: Any, tmp_path: Path
) -> None:
    """SIGUSR1 would end a shell without a trap; the program below gets it, also one that starts later."""
    program = (
        "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: print('checkpoint', flush=True)); "
        "print('ready', flush=True); time.sleep(1); time.sleep(1000)"
    )
    shell = f"""echo starting; until [ -e go ]; do sleep 0.05; done; python -c "{program}"; true"""
    job = start(cluster, "--total-nodes=2", "--tasks-per-node=1", "sh", "-c", shell)
    job.wait_for("chief | starting", "worker 0 | starting")
    job.signal(signal.SIGUSR1)
    (tmp_path / "go").touch()
    job.wait_for("chief | checkpoint", "worker 0 | checkpoint")
    job.signal(signal.SIGUSR1)
    wait(lambda: job.stdout.count("checkpoint") == 4, job.shown)
    job.signal(signal.SIGTERM)
    assert job.end() == 143


def test_a_peer_without_a_token_gets_nothing(cluster: Any, start: Any, tmp_path: Path) -> None:
    """An unauthenticated peer on the launcher's port is rejected, and the job continues."""
    pause = 'echo "ready $CSRUN_RANK"; until [ -e go ]; do sleep 0.05; done'
    job = start(cluster, "--total-nodes=1", "--tasks-per-node=1", "sh", "-c", pause)
    job.wait_for("ready 0")
    ((_, port),) = listening_sockets(job.process.pid)
    with socket.create_connection(("127.0.0.1", port), 5) as unknown:
        unknown.settimeout(30)
        unknown.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"challenge" not in unknown.recv(4096)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), 5) as plain,
        context.wrap_socket(plain) as unknown,
    ):
        unknown.settimeout(30)
        assert b"challenge" in unknown.recv(4096)
        unknown.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert unknown.recv(4096) == b""
    (tmp_path / "go").touch()
    assert job.end() == 0, job.shown()


def test_the_limit_of_open_files_is_raised_only_for_the_launcher(cluster: Any, run: Any) -> None:
    limited = ("sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh")
    job = run(cluster, "--total-nodes=1", "--tasks-per-node=4", "sh", "-c", "ulimit -n", before=limited)
    assert job.process.returncode == 0, job.shown()
    assert {line.partition(" | ")[2] for line in job.stdout.splitlines()} == {"40"}


def test_too_few_open_files_are_refused_before_the_queue(cluster: Any, run: Any) -> None:
    limited = ("sh", "-c", 'ulimit -n 60; exec "$@"', "sh")
    job = run(cluster, "--total-nodes=1", "--tasks-per-node=4", "true", before=limited)
    assert job.process.returncode == 1
    assert "this machine allows a process 60 open files" in job.stderr
    assert "Launching" not in job.stderr


def test_the_launcher_listens_where_the_site_lets_nodes_connect(make_cluster: Any, start: Any) -> None:
    cluster = make_cluster(1, extra="SrunPortRange=61000-61200")
    job = start(cluster, "--total-nodes=1", "--tasks-per-node=1", "sh", "-c", "echo ready; exec sleep 1000")
    job.wait_for("ready")
    ((_, port),) = listening_sockets(job.process.pid)
    assert 61000 <= port <= 61200
    job.signal(signal.SIGTERM)
    assert job.end() == 143


@pytest.fixture
def cs_system(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A simulated CS system on free ports of the loopback, and its address."""
    ready = tmp_path / "ready.json"
    with (tmp_path / "system.log").open("w") as log:
        server = subprocess.Popen(
            [ROOT / "bin" / "cs_system", "serve", "--port=0", "--data-port=0", f"--ready-file={ready}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        for _ in range(600):
            if ready.exists() or server.poll() is not None:
                break
            with pytest.raises(subprocess.TimeoutExpired):
                server.wait(0.1)
        yield server, json.loads(ready.read_text())["address"]
    finally:
        server.terminate()
        server.wait(30)


def test_fc_mnist_is_validated_on_a_node(cluster: Any, run: Any, tmp_path: Path) -> None:
    program = ("python", str(ROOT / "models/fc_mnist/tf/run.py"), f"--model_dir={tmp_path / 'model'}")
    job = run(cluster, "--launcher=slurm", *program, "--mode=validate_only", program="csrun_cpu")
    assert job.process.returncode == 0, job.shown()


def test_a_program_trains_on_four_nodes(cluster: Any, run: Any, cs_system: Any, tmp_path: Path) -> None:
    """The program has NumPy's front end; other front ends are tested with tasks on one machine."""
    program = ROOT / "tests" / "programs" / "numpy_program.py"
    layout = ("--total-nodes=4", "--tasks-per-node=1", "--log-dir=logs")
    job = run(cluster, *layout, "python", str(program), cs_system[1], str(tmp_path / "model"), "50")
    assert job.process.returncode == 0, job.shown()
    summary = json.loads((tmp_path / "model" / "run_summary.json").read_text())
    assert summary["last_step"] == 50
    with np.load(tmp_path / "model" / "state.npz") as saved:
        assert saved["state.global_step"] == 50
    assert {path.name for path in (tmp_path / "logs").glob("*.log")} == {
        "chief-0.log",
        "worker-0.log",
        "worker-1.log",
        "worker-2.log",
    }


def test_a_system_that_goes_away_ends_the_job(cluster: Any, start: Any, cs_system: Any) -> None:
    server, address = cs_system
    job = start(
        cluster,
        *("--total-nodes=2", "--tasks-per-node=1", "--grace-period=1"),
        *("sh", "-c", 'echo "ready $CSRUN_RANK"; exec sleep 1000', "sh", f"--cs_ip={address}"),
    )
    job.wait_for("ready 0", "ready 1")
    with pytest.raises(subprocess.TimeoutExpired):
        job.process.wait(1)
    server.kill()
    job.wait_for(f"the CS system at {address} is gone")
    assert job.end() == 1
    assert "the job failed with exit code 1" in job.stderr
    assert not job.left()
