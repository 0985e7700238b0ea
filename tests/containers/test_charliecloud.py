"""Programs in a real container."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import pytest

from csrun.tasks.command import CHARLIECLOUD_PATH

Run = Callable[..., subprocess.CompletedProcess[str]]

LOOK = """
import json, os, sys
print(json.dumps({
    "cwd": os.getcwd(), "python": sys.executable, "environment": dict(os.environ), "path": sys.path,
    "image": os.path.exists("/etc/image-of-the-tests"), "words": sys.argv[1:],
}))
"""


def test_the_program_sees_the_image_and_its_working_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("of the host")
    words = ("a b", "$HOME; 'x'", "", '"', "--bind=/")
    result = run("csrun_cpu", "python", "-c", LOOK, *words, MINE="kept")
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen["image"]
    assert seen["cwd"] == str(tmp_path)
    assert seen["words"] == list(words)
    assert seen["python"].startswith("/usr/local/bin/python")
    assert seen["environment"]["MINE"] == "kept"
    assert seen["environment"]["OF_THE_IMAGE"] == "yes"
    assert run("csrun_cpu", "cat", "a file").stdout == "of the host"


def test_variables_that_name_files_of_the_host_are_cleared_and_announced(run: Run, tmp_path: Path) -> None:
    foreign = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": "/nowhere",
        "LD_LIBRARY_PATH": "/nowhere",
        "LD_PRELOAD": "",
        "TMPDIR": str(tmp_path),
        "VIRTUAL_ENV": "/venv",
        "USER": "",
    }
    result = run("csrun_cpu", "python", "-c", LOOK, **foreign)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert not set(foreign) - {"USER"} & set(seen["environment"])
    assert seen["environment"]["USER"]
    assert str(tmp_path) not in seen["path"]
    assert seen["environment"]["PATH"] == CHARLIECLOUD_PATH
    assert "not passed on to the program: PYTHONPATH, PYTHONHOME, LD_LIBRARY_PATH, TMPDIR, VIRTUAL_ENV" in (
        result.stderr
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 3"), 3),
        (("sh", "-c", "kill -TERM $$"), -15),
        (("no-such-program",), 127),
        (("/etc/passwd",), 126),
    ],
)
def test_the_exit_code_is_the_programs(run: Run, words: tuple[str, ...], code: int) -> None:
    assert run("csrun_cpu", *words).returncode == code


def test_every_task_of_a_job_runs_in_the_image_and_writes_to_the_host(run: Run, tmp_path: Path) -> None:
    code = (
        "import json, os; task = json.loads(os.environ['TF_CONFIG'])['task']; "
        "open(task['type'] + str(task['index']), 'w').write(str(os.path.exists('/etc/image-of-the-tests')));"
        "print('in', os.environ['CSRUN_RANK'])"
    )
    result = run("csrun_wse", "--tasks-per-node=3", "python", "-c", code)
    assert result.returncode == 0, result.stderr
    assert "worker 1 | in 2" in result.stdout
    for name in ("chief0", "worker0", "worker1"):
        assert (tmp_path / name).read_text() == "True"


def test_a_task_that_fails_in_the_image_ends_the_job_with_its_code(run: Run) -> None:
    result = run("csrun_wse", "sh", "-c", "[ $CSRUN_RANK = 0 ] && sleep 60 || exit 9")
    assert result.returncode == 9


def test_directories_of_the_site_and_of_the_user_take_the_place_of_empty_ones(
    run: Run, outside_tmp: Path, tmp_path: Path
) -> None:
    (outside_tmp / "seen").touch()
    # The working directory does not exist in the image; the empty /home above it has.
    assert run("csrun_cpu", "ls", cwd=outside_tmp).stdout == "seen\n"
    for setting in ({"MOUNT_DIRS": str(outside_tmp)}, {}):
        flags = () if setting else (f"--mount-dirs={outside_tmp}",)
        assert run("csrun_cpu", *flags, "ls", str(outside_tmp), **setting).stdout == "seen\n"
    assert run("csrun_cpu", "ls", str(outside_tmp)).returncode != 0


def test_an_invalid_directory_is_refused_with_advice(run: Run) -> None:
    result = run("csrun_cpu", "--mount-dirs=/usr/share", "true")
    assert result.returncode == 2
    assert "has no directory '/usr/share', and no empty one above it" in result.stderr


def test_in_the_root_directory_the_image_is_seen_and_never_hidden(run: Run) -> None:
    assert "image-of-the-tests" in run("csrun_cpu", "ls", "etc", cwd=Path("/")).stdout
    result = run("csrun_cpu", "--mount-dirs=/tmp,/", "true")
    assert result.returncode == 2
    assert "'/' cannot be passed to a container" in result.stderr


@pytest.mark.parametrize("container", ["singularity", "charliecloud"])
def test_a_directory_that_cannot_be_said_to_the_runtime_is_refused(run: Run, container: str) -> None:
    folder = Path(mkdtemp(prefix="a:b-", dir="/home"))
    try:
        result = run("csrun_cpu", "--dry-run", "true", cwd=folder, CSRUN_CONTAINER=container)
    finally:
        folder.rmdir()
    assert result.returncode == (0 if container == "charliecloud" else 2)
    if container == "singularity":
        assert f"'{folder}' cannot be passed to singularity; expected a path without" in result.stderr
    else:  # the image's empty /home takes its place
        assert "--bind=/home " in result.stdout


@pytest.mark.parametrize("program", ["csrun_cpu", "csrun_wse"])
def test_a_missing_image_or_runtime_is_named(run: Run, program: str) -> None:
    result = run(program, "true", SINGULARITY_IMAGE="/no/such/image")
    assert result.returncode == 1
    assert "the container image '/no/such/image' does not exist" in result.stderr
    result = run(program, "true", CSRUN_CONTAINER="apptainer")
    assert result.returncode == 127
    assert "command not found: 'apptainer', the container runtime of this site" in result.stderr


def test_dry_run_shows_the_command_in_words_that_a_shell_takes(run: Run) -> None:
    words = ("python", "-c", "import sys; print(sys.argv[1:])", "a  b", "it's")
    shown = run("csrun_cpu", "--dry-run", *words).stdout.splitlines()[-1]
    command = shown.removeprefix("command: ")
    assert command.startswith("ch-run ")
    environment = {**os.environ, "USER": "me"}
    environment.pop("TMPDIR", None)  # the lines before say so: ch-run would mount it as /tmp
    result = subprocess.run(command, shell=True, cwd="/", env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == """['a  b', "it's"]\n"""
