"""csrun_wse as a user runs it: small jobs that end by themselves."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[4]

SHOW = """
import json, os, sys
from csrun.tasks.roles import TaskInfo
task = TaskInfo.from_environment()
print(json.dumps({
    "rank": task.rank, "role": task.role, "index": task.index, "workers": task.num_workers,
    "inside": task.in_process_worker, "job": task.job_id, "token": task.token,
    "tf_config": json.loads(os.environ["TF_CONFIG"]), "logs": os.environ["CSRUN_LOG_DIR"],
    "cpus": sorted(os.sched_getaffinity(0)), "unbuffered": os.environ["PYTHONUNBUFFERED"],
}))
"""


def by_label(stdout: str) -> dict[str, list[str]]:
    """The lines of every task, without the prefix."""
    found: dict[str, list[str]] = {}
    for line in stdout.splitlines():
        label, _, text = line.partition(" | ")
        found.setdefault(label, []).append(text)
    return found


def test_every_task_knows_its_part(run: Run, tmp_path: Path) -> None:
    result = run("csrun_wse", "--total-nodes=2", "--tasks-per-node=2", "python", "-c", SHOW)
    assert result.returncode == 0, result.stderr
    tasks = {label: json.loads(lines[0]) for label, lines in by_label(result.stdout).items()}
    assert set(tasks) == {"chief", "worker 0", "worker 1", "worker 2"}
    cluster = {"chief": ["127.0.0.1:23111"], "worker": [f"127.0.0.1:{23112 + n}" for n in range(3)]}
    for rank, (label, task) in enumerate(sorted(tasks.items())):
        role, index = ("chief", 0) if label == "chief" else ("worker", int(label.split()[1]))
        assert (task["rank"], task["role"], task["index"], task["workers"]) == (rank, role, index, 3)
        assert task["tf_config"] == {"cluster": cluster, "task": {"type": role, "index": index}}
        assert task["unbuffered"] == "1"
        assert not task["inside"]
    assert len({task["job"] for task in tasks.values()}) == 1
    assert len({task["token"] for task in tasks.values()}) == 1
    (log_dir,) = (tmp_path / "csrun_logs").iterdir()
    assert {task["logs"] for task in tasks.values()} == {str(log_dir)}
    assert log_dir.name == tasks["chief"]["job"]
    assert "--total-nodes=2: there is no cluster here" in result.stderr


def test_a_single_task_is_chief_and_worker(run: Run) -> None:
    result = run("csrun_wse", "--tasks-per-node=1", "python", "-c", SHOW)
    ((label, (line,)),) = by_label(result.stdout).items()
    assert label == "chief"
    assert json.loads(line)["inside"]


def test_logs_hold_the_bytes_and_the_terminal_prefixed_lines(run: Run, tmp_path: Path) -> None:
    script = r'printf "out $CSRUN_RANK\n"; printf "err $CSRUN_RANK\r\n" >&2; printf "\\377no end"'
    result = run("csrun_wse", "--tasks-per-node", "2", "--log_dir", "my logs", "sh", "-c", script)
    assert result.returncode == 0
    assert by_label(result.stdout) == {
        "chief": ["out 0", "err 0", "\\xffno end"],
        "worker 0": ["out 1", "err 1", "\\xffno end"],
    }
    assert (tmp_path / "my logs" / "chief-0.log").read_bytes() == b"out 0\nerr 0\r\n\xffno end"
    assert (tmp_path / "my logs" / "worker-0.log").read_bytes() == b"out 1\nerr 1\r\n\xffno end"
    assert "the job completed; logs: my logs" in result.stderr


def test_the_record_of_the_job(run: Run, tmp_path: Path) -> None:
    flags = ("--tasks-per-node=2", "--log-dir=logs", "--max-restarts=0")
    run("csrun_wse", *flags, "sh", "-c", "exit $((CSRUN_RANK * 5))")
    record = json.loads((tmp_path / "logs" / "job.json").read_text())
    assert record["exit_code"] == 5
    assert record["command"] == ["sh", "-c", "exit $((CSRUN_RANK * 5))"]
    assert record["started"] <= record["ended"]
    assert [(task["role"], task["index"], task["log"]) for task in record["tasks"]] == [
        ("chief", 0, "chief-0.log"),
        ("worker", 0, "worker-0.log"),
    ]
    assert {task["state"] for task in record["tasks"]} == {"ended"}
    assert record["tasks"][1]["exit_code"] == 5


def test_the_token_is_shown_nowhere(run: Run, tmp_path: Path) -> None:
    script = 'printf %s "$CSRUN_JOB_TOKEN" > "token$CSRUN_RANK"; cat /proc/[0-9]*/cmdline > arguments || true'
    command = ["sh", "-c", script]
    first = run("csrun_wse", "--log-dir=logs", *command)
    tokens = {path.read_text() for path in tmp_path.glob("token*")}
    assert len(tokens) == 1
    token = tokens.pop()
    assert len(token) == 32
    shown = first.stdout + first.stderr + run("csrun_wse", "--dry-run", *command).stdout
    shown += "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert token not in shown
    arguments = (tmp_path / "arguments").read_bytes()
    assert b"csrun_wse" in arguments
    assert token.encode() not in arguments
    run("csrun_wse", *command)
    assert (tmp_path / "token0").read_text() != token


def test_tasks_have_no_input(run: Run) -> None:
    result = run("csrun_wse", "--tasks-per-node=1", "cat")
    assert (result.returncode, result.stdout) == (0, "")


def test_prefixes_are_colored_on_a_terminal_only(run: Run, tmp_path: Path) -> None:
    assert "\x1b" not in run("csrun_wse", "echo", "x").stdout
    controller, terminal = pty.openpty()
    try:
        command = [str(ROOT / "bin" / "csrun_wse"), "--tasks-per-node=1", "echo", "x"]
        env = {**os.environ, "TERM": "xterm"}
        env.pop("NO_COLOR", None)
        with subprocess.Popen(
            command,
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=subprocess.DEVNULL,
        ) as process:
            os.close(terminal)
            shown = b""
            while b"\n" not in shown:
                shown += os.read(controller, 4096)
            assert process.wait(timeout=30) == 0
        assert shown == b"\x1b[36mchief |\x1b[0m x\r\n"
    finally:
        os.close(controller)


def test_tasks_are_pinned_where_all_fit(run: Run) -> None:
    available = sorted(os.sched_getaffinity(0))
    result = run("csrun_wse", f"--tasks-per-node={len(available)}", "--cpus-per-task=1", "python", "-c", SHOW)
    pinned = [json.loads(line)["cpus"] for (line,) in by_label(result.stdout).values()]
    assert sorted(pinned) == [[cpu] for cpu in available]


def test_more_tasks_than_cpus_run_anyway_with_one_line(run: Run) -> None:
    available = sorted(os.sched_getaffinity(0))
    tasks = len(available) + 1
    result = run("csrun_wse", f"--tasks-per-node={tasks}", "--cpus-per-task=1", "python", "-c", SHOW)
    assert result.returncode == 0
    assert [json.loads(line)["cpus"] for (line,) in by_label(result.stdout).values()] == [available] * tasks
    assert [line for line in result.stderr.splitlines() if "share them" in line] == [
        f"csrun_wse: {tasks} tasks x 1 CPU on a machine of {len(available)} "
        f"CPU{'s' if len(available) > 1 else ''}: the tasks share them and none is pinned"
    ]


@pytest.mark.parametrize(
    "flags",
    [
        ["--total-nodes", "2", "--tasks-per-node", "2", "--single-task-nodes", "1"],
        ["--total_nodes=2", "--tasks_per_node=2", "--single_task_nodes=1"],
        ["--nodes=2", "--tasks-per-node=2", "--single-task-nodes=1", "--cyclic", "--cpus_per_task=1"],
        ["--nodes", "2", "--tasks_per_node", "2", "--single-task-nodes=1", "--launcher=local", "--"],
    ],
)
def test_flags_in_every_spelling(run: Run, flags: list[str]) -> None:
    result = run("csrun_wse", *flags, "echo", "--total-nodes=9", "--")
    assert result.returncode == 0
    expected = ["--total-nodes=9 --"]
    assert by_label(result.stdout) == {"chief": expected, "worker 0": expected, "worker 1": expected}


def test_site_defaults_size_the_job(run: Run) -> None:
    result = run("csrun_wse", "echo", "x", env={"DEF_NODES": "2", "DEF_TASKS_PER_NODE": "2"})
    assert len(by_label(result.stdout)) == 4
    help_text = run("csrun_wse", "--help", env={"DEF_NODES": "7", "DEF_CPUS": "12"}).stdout
    assert "--total-nodes=7 --tasks-per-node=2 --cpus-per-task=12" in help_text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--total-nodes=0", "true"], 2, "--total-nodes: got '0', expected a whole number of at least 1"),
        (["--tasks-per-node", "python", "x"], 2, "--tasks-per-node: got 'python', expected a whole number"),
        (["--cpus_per_task=-1", "true"], 2, "--cpus-per-task: got '-1', expected a whole number"),
        (["--nodes=2", "--single-task-nodes=2", "true"], 2, "--single-task-nodes=2 with --total-nodes=2"),
        (["--grace-period=soon", "true"], 2, "--grace-period: got 'soon', expected seconds from 0"),
        (["--launcher=pbs", "true"], 2, "--launcher: got 'pbs', expected one of: local, slurm"),
        (
            ["--tasks_per_worker=3", "true"],
            2,
            "unknown flag '--tasks_per_worker'; did you mean --tasks-per-node?",
        ),
        (
            ["--wckey=mine", "true"],
            2,
            "unknown flag '--wckey'; expected one of this command's flags; pass other",
        ),
        (["--array=1-3", "true"], 2, "--array: got '1-3', which is refused: the elements of a job array"),
        (["--total-node=3", "true"], 2, "unknown flag '--total-node'; did you mean --total-nodes?"),
        (["--cyclic"], 2, "no command to run\nUsage: csrun_wse [FLAGS] COMMAND"),
        (["--total-nodes=99999", "--tasks-per-node=9", "true"], 2, "expected at most 42425"),
        (["nosuchprogram"], 127, "command not found: 'nosuchprogram'"),
        (["/etc/passwd"], 126, "'/etc/passwd' is not executable"),
        (["./noshebang"], 126, "cannot execute './noshebang'"),
        (["--log-dir=/proc/logs", "true"], 1, "cannot write logs to /proc/logs"),
        (["--log-dir=file", "true"], 1, "cannot write logs to"),
    ],
)
def test_programs_that_cannot_be_run_are_named(
    run: Run, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "noshebang").write_text("echo hello")
    (tmp_path / "noshebang").chmod(0o755)
    result = run("csrun_wse", *arguments)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_working_directory_that_is_gone_is_named(run: Run) -> None:
    launcher = str(ROOT / "bin" / "csrun_wse")
    result = run("csrun_cpu", "sh", "-c", f'mkdir gone; cd gone; rmdir ../gone; exec "{launcher}" true')
    assert result.returncode == 1
    assert "csrun_wse: the working directory cannot be used: No such file or directory" in result.stderr


@pytest.mark.parametrize("flag", ["-h", "-?", "--help"])
def test_help(run: Run, flag: str) -> None:
    result = run("csrun_wse", flag)
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: csrun_wse [FLAGS] COMMAND [ARGUMENT]...")
    assert "csrun_wse --total-nodes=3 --tasks-per-node=5 --cpus-per-task=16 python run.py" in result.stdout
    assert "--total-nodes=1 --tasks-per-node=2" in result.stdout


def test_dry_run_starts_and_creates_nothing(run: Run, tmp_path: Path) -> None:
    result = run("csrun_wse", "--dry-run", "--tasks-per-node=3", "touch", "a file")
    assert result.returncode == 0
    assert not list(tmp_path.iterdir())
    assert result.stdout.count("  command: touch 'a file'\n") == 3
    assert result.stdout.startswith("job local-")


def test_launchers_nest(run: Run) -> None:
    inner = str(ROOT / "bin" / "csrun_wse")
    result = run("csrun_wse", "--tasks-per-node=1", inner, "--tasks-per-node=2", "--log-dir=in", "echo", "x")
    assert result.returncode == 0
    lines = by_label(result.stdout)["chief"]
    assert {"chief | x", "worker 0 | x"} <= set(lines)
    assert not any("not passed on" in line for line in lines)


def test_help_loads_neither_frameworks_nor_process_handling() -> None:
    code = "import sys, csrun.commands.wse, csrun.commands.cpu; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
    loaded = set(result.stdout.decode().split())
    assert not loaded & {
        "numpy",
        "rich",
        "tensorflow",
        "jax",
        "ctypes",
        "subprocess",
        "asyncio",
        "grpc",
        "xdsl",
        "ssl",
        "cryptography",
        "cs_toolkit.step",
    }


def test_help_with_all_subcommands_loads_nothing_of_tls_or_timelines() -> None:
    code = (
        "import sys; from click import Context; from csrun.commands.csrun import build_command\n"
        "build_command().get_help(Context(build_command())); print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
    loaded = set(result.stdout.decode().split())
    assert "csrun.commands.trace" in loaded
    assert not loaded & {"ssl", "cryptography", "yaml", "csrun.jobs.timeline", "cs_toolkit.step"}


def test_starting_a_program_on_this_machine_loads_nothing_of_a_job() -> None:
    code = 'from csrun.bootstrap import run; run("csrun_cpu", "csrun.commands.cpu")'
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, "true"],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.decode().splitlines()}
    assert "csrun.schedulers.local.program" in loaded
    assert not loaded & {
        "ctypes",
        "ssl",
        "subprocess",
        "csrun.schedulers.local.run",
        "csrun.jobs.supervisor",
        "cs_toolkit.step",
    }


def test_a_dry_run_for_a_cluster_that_does_not_answer_shows_what_it_can(run: Run, tmp_path: Path) -> None:
    nowhere = {"SLURM_CONF": str(tmp_path / "no.conf"), "GRES_RESOURCE": "cs:1"}
    words = ("--total-nodes=3", "--tasks-per-node=2", "--cpus-per-task=4", "python", "run.py")
    result = run("csrun_wse", "--dry-run", *words, env=nowhere)
    assert result.returncode == 0, result.stderr
    assert "nothing is checked against the cluster" in result.stderr
    (srun,) = [line for line in result.stdout.splitlines() if line.startswith("srun: srun ")]
    assert "--nodes=1 --gres=cs:1 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=4" in srun
    assert "--nodes=2 --exclusive --ntasks=4 --ntasks-per-node=2 --cpus-per-task=4" in srun
    assert "worker 4: rank 5, node 2" in result.stdout
    refused = run("csrun_wse", *words, env=nowhere)
    assert refused.returncode == 1
    assert not (tmp_path / "csrun_logs").exists()
