"""csrun_cpu as a user runs it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("code", [0, 1, 3, 42, 255])
def test_the_exit_code_is_the_programs(run: Run, code: int) -> None:
    assert run("csrun_cpu", "sh", "-c", f"exit {code}").returncode == code


def test_a_program_killed_by_a_signal_looks_so(run: Run) -> None:
    assert run("csrun_cpu", "sh", "-c", "kill -9 $$").returncode == -9


def test_the_command_is_shown_on_stderr_and_stdout_is_the_programs(run: Run) -> None:
    result = run("csrun_cpu", "printf", "%s", "a b; $HOME")
    assert result.stdout == "a b; $HOME"
    assert result.stderr == "Running: printf %s 'a b; $HOME'\n"


@pytest.mark.parametrize(
    "flags",
    [
        ["--alloc-node", "False"],
        ["--alloc-node=false"],
        ["--alloc_node=False"],
        ["--mount_dirs=/tmp,/"],
        ["--mount-dirs", ",/tmp,"],
        ["--exclude_gres", "True", "--logging", "TRUE"],
        ["--alloc-node=False", "--"],
    ],
)
def test_flags_in_every_spelling(run: Run, flags: list[str]) -> None:
    result = run("csrun_cpu", *flags, "echo", "--alloc-node=7", "--", "-x")
    assert (result.returncode, result.stdout) == (0, "--alloc-node=7 -- -x\n")


def test_logging_false_leaves_stderr_to_the_program(run: Run) -> None:
    result = run("csrun_cpu", "--logging=False", "--alloc-node=True", "true", env={"PYTHONHOME": "/mine"})
    assert result.stderr == ""


def test_python_is_the_toolkits_and_finds_its_modules_before_the_users(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    other_version = tmp_path / "python3.8" / "site-packages"
    other_version.mkdir(parents=True)
    (other_version / "own.py").write_text("raise SystemExit('a module for another Python')")
    (mine / "own.py").write_text("NAME = 'own'")
    (mine / "sitecustomize.py").write_text("raise SystemExit('the wrong sitecustomize')")
    (mine / "csrun.py").write_text("raise SystemExit('the wrong csrun')")
    (mine / "click.py").write_text("raise SystemExit('the wrong click')")
    code = "import sys, own, csrun.tasks.roles; print(sys.executable, csrun.__file__, own.NAME)"
    env = {"PYTHONPATH": f"{other_version}:mine", "PYTHONHOME": "/nowhere"}
    result = run("csrun_cpu", "python", "-c", code, env=env)
    python, module, own = result.stdout.split()
    assert own == "own"
    assert Path(python).parent == Path(sys.executable).parent
    assert Path(module) == ROOT / "csrun" / "__init__.py"
    assert "not passed on to the program: PYTHONHOME (" in result.stderr


def test_modules_in_the_working_directory_do_not_disturb_the_launcher(run: Run, tmp_path: Path) -> None:
    for name in ("click.py", "csrun.py", "enum.py"):
        (tmp_path / name).write_text("raise SystemExit('a file of the user')")
    assert run("csrun_cpu", "echo", "fine").stdout == "fine\n"


def test_tf_config_and_an_enclosing_jobs_variables_are_absent(run: Run) -> None:
    env = {"TF_CONFIG": '{"cluster": {}}', "CSRUN_RANK": "1", "CSRUN_JOB_ID": "x", "KEPT": "yes"}
    result = run("csrun_cpu", "env", env=env)
    names = {line.partition("=")[0] for line in result.stdout.splitlines()}
    assert "KEPT" in names
    assert not names & set(env) - {"KEPT"}


def test_the_program_keeps_the_terminal(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    try:
        code = "import os; print(os.isatty(0), os.isatty(1), os.isatty(2)); print('got', input())"
        with subprocess.Popen(
            [ROOT / "bin" / "csrun_cpu", "python", "-c", code],
            cwd=tmp_path,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        ) as process:
            os.close(terminal)
            os.write(controller, b"an answer\n")
            shown = b""
            while b"got an answer" not in shown:
                shown += os.read(controller, 4096)
            assert process.wait(timeout=30) == 0
        assert b"True True True" in shown
    finally:
        os.close(controller)


def test_a_closed_pipe_ends_the_program_as_without_launcher(run: Run) -> None:
    # Python ignores SIGPIPE; would the program inherit that, `yes` would complain and fail.
    result = run("csrun_cpu", "sh", "-c", "yes | head -n 1; yes 2>&1 >/dev/full | grep -c space")
    assert result.stdout == "y\n1\n"
    assert result.stderr.startswith("Running: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nosuchprogram"], 127, "command not found: 'nosuchprogram'"),
        (["csctl", "get", "jobs"], 127, "command not found: 'csctl'; 'csrun status' and 'csrun cancel'"),
        (["./nosuchprogram"], 127, "command not found: './nosuchprogram'"),
        ([""], 127, "command not found: ''"),
        (["x" * 5000], 127, "command not found: 'xxx"),
        (["bin"], 127, "command not found: 'bin'"),
        (["noshebang"], 127, "a file of that name is here, but programs are searched only in PATH"),
        (["/etc/passwd"], 126, "'/etc/passwd' is not executable"),
        (["/etc"], 126, "'/etc' is a directory"),
        (["./noshebang"], 126, "cannot execute './noshebang': Exec format error"),
        (["./badshebang"], 126, "names an interpreter that exists"),
        ([], 2, "no command to run\nUsage: csrun_cpu [FLAGS] COMMAND"),
        (["--alloc-node=maybe", "true"], 2, "--alloc-node: got 'maybe', expected True or False"),
        (
            ["--mount-dirs=/nosuchdir", "true"],
            2,
            "--mount-dirs: got '/nosuchdir', expected existing directories",
        ),
        (["--mount-dirs=,", "true"], 2, "--mount-dirs: got ',', expected existing directories"),
        (["--time=nonsense", "true"], 2, "--time: got 'nonsense', expected a time limit as MINUTES, "),
        (["--time=4h", "true"], 2, "--time: got '4h', expected a time limit"),
        (["--aloc_node=True", "true"], 2, "unknown flag '--aloc_node'; did you mean --alloc-node?"),
        (["--total-nodes=2", "true"], 2, "unknown flag '--total-nodes'"),
        (["--alloc-node"], 2, "--alloc-node: no value given"),
        (["--dry-run=yes", "true"], 2, "--dry-run: got a value, expected none"),
        (["-x", "true"], 2, "unknown flag '-x'"),
    ],
)
def test_programs_that_cannot_be_run_are_named(
    run: Run, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    for name, text in (("noshebang", "echo hello"), ("badshebang", "#!/no/such/interpreter\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    result = run("csrun_cpu", *arguments, env={"PATH": "/:/usr/bin:/bin"})
    assert result.returncode == code
    assert f"csrun_cpu: {message}" in result.stderr or message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("flag", ["-h", "-?", "--help"])
def test_help(run: Run, flag: str) -> None:
    result = run("csrun_cpu", flag)
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: csrun_cpu [FLAGS] COMMAND [ARGUMENT]...")
    assert "csrun_cpu python run.py --mode=validate_only" in result.stdout
    assert "def-nodes" not in result.stdout


def test_queries_return_the_settings_of_the_site(run: Run) -> None:
    site = {
        "DEF_NODES": "5",
        "DEF_TASKS_PER_NODE": "8",
        "DEF_CPUS_PER_TASK": "16",
        "SINGULARITY_IMAGE": "/images/cbcore.sif",
        "MOUNT_DIRS": "/data,/lab",
        "GRES_RESOURCE": "cs:1",
        "GRES_NODE": "cs-host",
    }
    flags = (
        "--def_nodes",
        "--def_tasks",
        "--def_cpus",
        "--singularity",
        "--def_mount_dirs",
        "--def_gres",
        "--def-gres-node",
    )
    answers = [run("csrun_cpu", flag, env=site) for flag in flags]
    assert [answer.stdout for answer in answers] == [f"{value}\n" for value in site.values()]
    assert {answer.returncode for answer in answers} == {0}


def test_queries_have_defaults_and_the_image_has_none(run: Run) -> None:
    assert run("csrun_cpu", "--def_nodes").stdout == "1\n"
    assert run("csrun_cpu", "--def_tasks").stdout == "2\n"
    assert int(run("csrun_cpu", "--def_cpus").stdout) == max(1, len(os.sched_getaffinity(0)) // 2)
    image = run("csrun_cpu", "--singularity")
    assert (image.returncode, image.stdout) == (1, "")
    assert "SINGULARITY_IMAGE is not set" in image.stderr


def test_a_wrong_site_default_is_named(run: Run) -> None:
    result = run("csrun_cpu", "true", env={"DEF_NODES": "many"})
    assert result.returncode == 2
    assert "the environment variable DEF_NODES is 'many'" in result.stderr


def test_dry_run_starts_nothing(run: Run, tmp_path: Path) -> None:
    result = run("csrun_cpu", "--dry-run", "touch", "a file", env={"LLVM_TOP": "/llvm"})
    assert result.returncode == 0
    assert not list(tmp_path.iterdir())
    lines = result.stdout.splitlines()
    assert f"working directory: {tmp_path}" in lines
    assert "unset: LLVM_TOP" in lines
    assert lines[-1] == "command: touch 'a file'"


def test_the_wrapper_works_through_symbolic_links_and_from_a_path_with_blanks(tmp_path: Path) -> None:
    folder = tmp_path / "my tools"
    folder.mkdir()
    (folder / "first").symlink_to(ROOT / "bin" / "csrun_cpu")
    (folder / "csrun_cpu").symlink_to("first")
    result = subprocess.run(
        ["csrun_cpu", "echo", "a  b"],
        cwd="/",
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "a  b\n")


def test_without_its_packages_the_wrapper_gives_advice(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / "bin").mkdir()
    (checkout / "bin" / "csrun_wse").write_bytes((ROOT / "bin" / "csrun_wse").read_bytes())
    (checkout / "bin" / "csrun_wse").chmod(0o755)
    (checkout / "csrun").symlink_to(ROOT / "csrun")
    python = checkout / ".venv" / "bin" / "python"
    # -S: the bare interpreter, as on a machine where nothing is installed.
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    result = subprocess.run(
        [checkout / "bin" / "csrun_wse", "true"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    missing = f"the Python package click is missing for {sys.executable}"
    assert result.stderr == f"csrun_wse: {missing}: run 'make setup' in {checkout}\n"
