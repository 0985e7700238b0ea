"""Published sizes go through the compiler in little memory, as no weight is ever made there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[3] / "models"
LIMIT_GIB = 8.0


def config(folder: str, params: str) -> Path:
    """A parameter file of an example program."""
    return MODELS / folder / "tf" / "configs" / params


GPT3 = config("gpt2", "params_gpt3_13b.yaml")


def compile_only(folder: str, params: Path, model_dir: Path) -> tuple[int, str, float]:
    """(exit code, stderr, peak memory in GiB) of a program's `--mode=compile_only`."""
    program = MODELS / folder / "tf" / "run.py"
    command = [sys.executable, str(program), "--mode=compile_only", f"--model_dir={model_dir}"]
    command.append(f"--params={params}")
    errors = model_dir.with_suffix(".txt")
    with errors.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, cwd=model_dir.parent)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, errors.read_text(), usage.ru_maxrss / 2**20


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_gpt2_small_compiles(tmp_path: Path) -> None:
    code, errors, peak_gib = compile_only("gpt2", config("gpt2", "params_gpt2_small.yaml"), tmp_path / "gpt2")
    assert code == 0, errors
    assert peak_gib < LIMIT_GIB
    (artifact,) = (tmp_path / "gpt2").glob("cs_*")
    assert (artifact / "compile_report.txt").read_text().startswith("Estimated Overall Performance")


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("bert", "params_bert_large.yaml"),
        ("bert", "params_bert_large_msl512.yaml"),
        ("bert", "params_bert_large_squad.yaml"),
        ("gpt2", "params_gpt2_large.yaml"),
    ],
)
def test_large_models_compile(model: str, params: str, tmp_path: Path) -> None:
    code, errors, peak_gib = compile_only(model, config(model, params), tmp_path / model)
    assert code == 0, errors
    assert peak_gib < LIMIT_GIB


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_weights_of_13_thousand_million_parameters_stream_without_being_asked_to(tmp_path: Path) -> None:
    code, errors, peak_gib = compile_only("gpt2", GPT3, tmp_path / "gpt3")
    assert code == 0, errors
    assert "execution auto: weight streaming, because the layers do not fit the wafer together" in errors
    (artifact,) = (tmp_path / "gpt3").glob("cs_*")
    assert "available are 307,840" in (artifact / "compile_report.txt").read_text()
    assert peak_gib < LIMIT_GIB


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_layers_of_13_thousand_million_parameters_do_not_fit_together(tmp_path: Path) -> None:
    params = tmp_path / "pipelined.yaml"
    params.write_text(GPT3.read_text() + "  execution: pipelined\n")
    code, errors, peak_gib = compile_only("gpt2", params, tmp_path / "gpt3")
    assert code == 1
    (message,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert "do not fit" in message
    assert "times as many are needed" in message
    assert "Weight streaming holds one layer at a time and would run it at" in message
    assert message.endswith("compile it with execution weight_streaming, or auto")
    assert peak_gib < LIMIT_GIB
