"""The batch script: its whole text, and values that need quotes."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cs_toolkit import __version__
from cs_toolkit.errors import UsageError
from csrun.schedulers.slurm.batch import WARN_S, BatchScript, directive, render, warning_time

SCRIPT = BatchScript(
    name="slurm-20261120-101530-1a2b",
    components=(
        ("--nodes=1", "--gres=cs:1", "--ntasks=1", "--ntasks-per-node=1", "--time=4:00:00"),
        ("--nodes=2", "--exclusive", "--ntasks=4", "--cpus-per-task=8", "--time=4:00:00"),
    ),
    output=Path("/home/ada/runs/csrun_logs/j 1/slurm-%j.out"),
    cwd=Path("/home/ada/it's here"),
    command=("/opt/toolkit/bin/csrun_wse", "--launcher=slurm", "--", "python", "run.py", "a b", "$(rm x)"),
    requeue=True,
    warn_s=120,
)


def test_the_whole_text() -> None:
    assert (
        render(SCRIPT)
        == f"""\
#!/bin/bash
# Written by csrun_wse {__version__}. Submit it again with: sbatch FILE
#SBATCH --job-name=slurm-20261120-101530-1a2b
#SBATCH --output="/home/ada/runs/csrun_logs/j 1/slurm-%j.out"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --nodes=1
#SBATCH --gres=cs:1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=4:00:00
#SBATCH hetjob
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=8
#SBATCH --time=4:00:00

cd -- '/home/ada/it'"'"'s here' || exit
exec /opt/toolkit/bin/csrun_wse --launcher=slurm -- python run.py 'a b' '$(rm x)'
"""
    )


def test_a_plain_job_has_no_second_component_no_signal_and_no_requeue() -> None:
    text = render(replace(SCRIPT, components=SCRIPT.components[:1], requeue=False, warn_s=0))
    assert "hetjob" not in text
    assert "--signal" not in text
    assert "#SBATCH --no-requeue\n" in text


def test_bash_gets_the_words_that_were_given() -> None:
    words = ("printf", "%s|", "a b", "it's", 'q"q', "$HOME `id` $(id)", "", "\n", "*", "\\", "ünïcode")
    text = render(replace(SCRIPT, cwd=Path("/"), command=words))
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, check=True)
    assert done.stdout == "|".join((*words[2:], ""))


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("a b", '#SBATCH --comment="a b"'),
        ('say "hi"', '#SBATCH --comment="say \\"hi\\""'),
        ("back\\slash", '#SBATCH --comment="back\\\\slash"'),
        ("it's $HOME #1", '#SBATCH --comment="it\'s $HOME #1"'),
    ],
)
def test_values_with_blanks_and_quotes_are_quoted(value: str, line: str) -> None:
    assert directive("--comment", value) == line


def test_a_percent_sign_of_the_path_is_no_pattern() -> None:
    text = render(replace(SCRIPT, output=Path("/data/50%/slurm-%j.out")))
    assert "#SBATCH --output=/data/50%%/slurm-%j.out\n" in text


@pytest.mark.parametrize("output", ["/data/a\\b/slurm-%j.out", "/data/a\nb/slurm-%j.out"])
def test_paths_that_cannot_be_passed_to_sbatch_are_refused(output: str) -> None:
    with pytest.raises(UsageError, match="expected a"):
        render(replace(SCRIPT, output=Path(output)))


@pytest.mark.parametrize(
    ("asked_s", "time_limit", "warn_s"),
    [
        (None, "", WARN_S),
        (None, "UNLIMITED", WARN_S),
        (None, "4:00:00", WARN_S),
        (None, "4", WARN_S),
        (None, "3", 90),
        (None, "2", 50),
        (None, "1", 0),
        (None, "0", WARN_S),
        (300.0, "1-0", 300),
        (59.9, "1", 59),
        (0.0, "1", 0),
    ],
)
def test_a_short_job_works_at_least_half_of_its_time(
    asked_s: float | None, time_limit: str, warn_s: int
) -> None:
    """Slurm may be a minute early: a job of a minute would be warned, and ended, at its start."""
    assert warning_time(asked_s, time_limit) == warn_s


def test_a_warning_at_the_start_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--warn-before=60 with --time=1: .* lower --warn-before or raise"):
        warning_time(60.0, "1")
