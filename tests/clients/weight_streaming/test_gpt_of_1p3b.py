"""A GPT of 1.3 billion parameters: compiled at reduced depth, trained in little memory."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tensorflow as tf

from cs_toolkit.loader import load_mapping
from tests.programs.tf.events import read_losses
from tests.systems import running_system

Example = Callable[[str], AbstractContextManager[dict[str, ModuleType]]]

PROGRAM = Path(__file__).parents[3] / "models" / "gpt2" / "tf"
PUBLISHED, SHORT = "params_cerebras_gpt_1p3b.yaml", "params_cerebras_gpt_1p3b_msl128.yaml"

WAFER_GIB, CHIEF_GIB = 6.0, 6.0
DISK_GIB = 60
"""MemoryX keeps 16 bytes a parameter; two checkpoints have 12 each for a moment."""


def params_of(modules: dict[str, ModuleType], file: Path) -> dict[str, Any]:
    program = modules["run"].PROGRAM
    params: dict[str, Any] = program.merge_params(program.parse_arguments(["-m", "train", "-p", str(file)]))
    return params


@pytest.mark.parametrize("name", [PUBLISHED, pytest.param(SHORT, marks=pytest.mark.soak)])
def test_the_number_of_parameters(name: str, example: Example) -> None:
    file = PROGRAM / "configs" / name
    with example("gpt2") as modules, tf.Graph().as_default():
        params = params_of(modules, file)
        ids = tf.zeros([1, params["train_input"]["max_sequence_length"]], tf.int32)
        modules["model"].network(ids, params["model"], training=True)
        count = sum(math.prod(v.shape.as_list()) for v in tf.compat.v1.trainable_variables())
    assert round(count / 1e8) == 13
    assert f"{count:,} parameters" in file.read_text().replace("\n# ", " ")
    assert params["runconfig"]["execution"] == "weight_streaming"


def test_blocks_are_compiled_once(example: Example, tmp_path: Path) -> None:
    text = (PROGRAM / "configs" / SHORT).read_text()
    file = tmp_path / "params.yaml"
    file.write_text(text.replace("num_hidden_layers: 24", "num_hidden_layers: 4"))
    with example("gpt2") as modules:
        modules["run"].main(["--mode=compile_only", f"--params={file}", f"--model_dir={tmp_path}"])
    (artifact,) = tmp_path.glob("cs_*")
    layers = json.loads((artifact / "schedule.json").read_text())["layers"]
    for way, counts in {"forward": [1, 1, 4], "backward": [1, 3]}.items():
        calls = Counter(layer[way]["function"] for layer in layers if layer[way] is not None)
        assert sorted(calls.values()) == counts, way


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_it_trains_in_little_memory(tmp_path: Path) -> None:
    free_gib = shutil.disk_usage(tmp_path).free / 2**30
    if free_gib < DISK_GIB:
        pytest.skip(f"{free_gib:.0f} GiB of disk are free, state and checkpoints need {DISK_GIB}")
    model_dir, log = tmp_path / "model", tmp_path / "chief.txt"
    params = load_mapping(PROGRAM / "configs" / SHORT)
    with running_system(tmp_path, [f"--memoryx-dir={tmp_path}"]) as system, log.open("w") as errors:
        command = [
            sys.executable,
            str(PROGRAM / "run.py"),
            "--mode=train",
            "--max_steps=2",
            f"--cs_ip={system.address}",
        ]
        command += [f"--params={PROGRAM / 'configs' / SHORT}", f"--model_dir={model_dir}"]
        chief = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            _, status, usage = os.wait4(chief.pid, 0)
        except BaseException:  # of a time limit: the chief would continue
            chief.kill()
            raise
        chief.returncode = os.waitstatus_to_exitcode(status)
        wafer_gib = peak_gib(system.process.pid)
    assert chief.returncode == 0, log.read_text()
    assert wafer_gib < WAFER_GIB
    assert usage.ru_maxrss / 2**20 < CHIEF_GIB
    first, *_, last = read_losses(model_dir)
    # The logits of a fresh model have the variance of a product of its width with weights of 0.02.
    variance = params["model"]["hidden_size"] * 0.02**2
    assert first == pytest.approx(math.log(params["model"]["vocab_size"]) + variance / 2, rel=0.05)
    assert last < first
    shutil.rmtree(model_dir)


def peak_gib(pid: int) -> float:
    """The most memory that a process has had resident; of the wafer's no file but its libraries counts."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 2**20
