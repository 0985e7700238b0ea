"""cs_input_analyzer of a program in a container: the analyzer is outside of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Reads a file of a directory that only --mount-dirs shows; then one that is not there.
PROGRAM = """
import sys
from pathlib import Path
from input_analyzer.handover import InputProgram, take_over

def train_input(shard):
    data = Path(sys.argv[1])
    yield (data / f"{(data / 'seen').read_text()} in the container").read_bytes()

take_over(InputProgram("tensorflow", train_input, lambda shard: None, train_input))
"""

Run = Callable[..., CompletedProcess[str]]


def test_it_reads_what_is_mounted_and_nothing_is_left(
    run: Run, frame: tuple[Path, str], python: str, outside_tmp: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.py").write_text(PROGRAM)
    (outside_tmp / "seen").write_text("file")
    words = (f"--mount-dirs={outside_tmp}", "--json=a.json", python, "run.py", str(outside_tmp))
    site = {"SINGULARITY_IMAGE": str(frame[0]), "MOUNT_DIRS": frame[1]}
    result = run("cs_input_analyzer", *words, **site)
    assert result.returncode == 1, result.stderr
    assert f"No such file or directory: '{outside_tmp}/file in the container'" in result.stderr
    assert not (tmp_path / "a.json").exists()
    result = run("cs_input_analyzer", *words[1:], **site)
    assert f"No such file or directory: '{outside_tmp}/seen'" in result.stderr


def test_a_missing_image_or_directory_is_named(run: Run) -> None:
    result = run("cs_input_analyzer", "python", "run.py", SINGULARITY_IMAGE="/no/such/image")
    assert result.returncode == 1
    assert "the container image '/no/such/image' does not exist" in result.stderr
    result = run("cs_input_analyzer", "--mount-dirs=/usr/share", "python", "run.py")
    assert result.returncode == 2
    assert "has no directory '/usr/share', and no empty one above it" in result.stderr


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_fc_mnist_is_measured(run: Run, frame: tuple[Path, str], python: str, tmp_path: Path) -> None:
    program = (python, str(ROOT / "models/fc_mnist/tf/run.py"), "--mode=train", "-o", "out")
    flags = ("--seconds=1", "--cpus-per-task=1", "--json=a.json")
    site = {"SINGULARITY_IMAGE": str(frame[0]), "MOUNT_DIRS": frame[1]}
    result = run("cs_input_analyzer", *flags, *program, **site)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["subject"]["function"] == "train_input_fn"
    assert all(one["pinned"] and one["memory_per_task_bytes"] > 2**27 for one in found["measurements"])
