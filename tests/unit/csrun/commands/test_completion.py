"""Completions of the Tab key, and their installation."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from csrun.commands import cpu, csrun, wse
from csrun.commands.completion import MARK, PROGRAMS, install, remove, script_for
from csrun.jobs.registry import KnownJob, register
from csrun.site import Site


def completed(command: click.Command, words: list[str], incomplete: str) -> list[str]:
    name = str(command.name)
    found: Any = ShellComplete(command, {}, name, "").get_completions(words, incomplete)
    return [f"<{item.type}>" if item.type != "plain" else item.value for item in found]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number, job_id in enumerate(("local-1", "local-2", "slurm-3")):
        log_dir, created_s = str(tmp_path / job_id), 100.0 + number
        register(KnownJob(job_id, log_dir, "local", ("python", "run.py"), "", created_s), os.environ)
    (tmp_path / "local-2").mkdir()
    for task in ("chief-0", "worker-0"):
        (tmp_path / "local-2" / f"{task}.log").touch()


@pytest.mark.usefixtures("jobs")
def test_jobs_and_their_tasks_are_completed() -> None:
    command = csrun.build_command()
    assert completed(command, ["status"], "") == ["slurm-3", "local-2", "local-1"]
    assert completed(command, ["cancel"], "lo") == ["local-2", "local-1"]
    assert completed(command, ["logs", "local-2"], "") == ["all", "chief-0", "worker-0"]


def test_subcommands_flags_and_files_are_completed() -> None:
    assert completed(csrun.build_command(), [], "co") == ["completion", "config"]
    assert "--tasks-per-node" in completed(wse.build_command(Site()), [], "--task")
    for command in (wse.build_command(Site()), cpu.build_command(Site())):
        assert completed(command, ["python"], "ru") == ["<file>"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_it_is_installed_once_and_can_be_taken_out(shell: str, tmp_path: Path) -> None:
    start = tmp_path / f".{shell}rc"
    start.write_text("alias ll='ls -l'")
    for _ in range(2):
        script, started = install(shell, tmp_path)
        assert started == start
    assert start.read_text().count(MARK) == 1
    assert start.read_text().startswith("alias ll='ls -l'\nsource ")
    assert all(program in script.read_text() for program in PROGRAMS)
    assert remove(shell, tmp_path) == [script, start]
    assert start.read_text() == "alias ll='ls -l'\n"
    assert remove(shell, tmp_path) == []


def test_fish_reads_it_by_itself(tmp_path: Path) -> None:
    [script] = install("fish", tmp_path)
    assert script.read_text() == script_for("fish")
    assert remove("fish", tmp_path) == [script]


def test_bash_takes_the_script(tmp_path: Path) -> None:
    path = tmp_path / "completion.bash"
    path.write_text(script_for("bash"))
    listed = subprocess.run(
        [str(shutil.which("bash")), "--norc", "-c", f"source {path}; complete -p"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert all(line in listed for line in (f"_completion {program}\n" for program in PROGRAMS))


def test_zsh_has_completion_put_on_first(tmp_path: Path) -> None:
    script = script_for("zsh")
    assert script.index("compinit") < script.index("compdef _csrun_completion")
    zsh = shutil.which("zsh")
    if zsh is None:
        return
    (tmp_path / "completion.zsh").write_text(script)
    command = [zsh, "-f", "-c", "source ./completion.zsh; print $_comps[csrun_wse]"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (shown.stdout, shown.stderr) == ("_csrun_wse_completion\n", "")
