"""cs_input_analyzer of a program in a container: the analyzer is outside of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Reads a file of a directory that only --mount-dirs shows; then one that is missing.
PROGRAM = """
import sys
from pathlib import Path
from input_rules.input_export import InputProgram, export_input

def train_input(shard):
    data = Path(sys.argv[1])
    yield (data / f"{(data / 'seen').read_text()} in the container").read_bytes()

export_input(InputProgram("tensorflow", train_input, lambda shard: None, train_input))
"""

Run = Callable[..., CompletedProcess[str]]


def test_an_analysis_in_a_container_reads_mounted_files_and_leaves_nothing(
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


COLD = """
import tensorflow as tf

def train_input():
    records = tf.data.FixedLengthRecordDataset(tf.io.gfile.glob("{folder}/*.bin"), 4096)
    parsed = records.map(lambda record: tf.io.decode_raw(record, tf.uint8))
    return parsed.batch(64, drop_remainder=True).repeat()
"""


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_files_are_dropped_from_memory_for_a_program_inside(
    run: Run, frame: tuple[Path, str], python: str, outside_tmp: Path, tmp_path: Path
) -> None:
    """Files have their names outside of the container; reads inside are counted."""
    for number in range(4):
        (outside_tmp / f"{number}.bin").write_bytes(bytes(8 << 20))
    (tmp_path / "data.py").write_text(COLD.format(folder=outside_tmp))
    flags = ("--seconds=1", "--cpus-per-task=1", "--json=a.json", f"--cold={outside_tmp}")
    site = {"SINGULARITY_IMAGE": str(frame[0]), "MOUNT_DIRS": frame[1]}
    program = (python, "-m", "input_analyzer.function_program", "data.py:train_input")
    result = run("cs_input_analyzer", *flags, f"--mount-dirs={outside_tmp}", *program, **site)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert "Cold: 4 files below" in " ".join(found["notes"])
    first = found["measurements"][0]
    assert first["cold"]
    # The kernel reads ahead in whole pages; what was seen before the first sample is not in it.
    assert 0.5 * 4096 < first["first_epoch_disk_bytes_per_sample"] < 2 * 4096
