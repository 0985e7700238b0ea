"""Every PyTorch example trains by weight streaming to the numbers of the pipelined execution."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cerebras_pytorch.experimental as cstorch
from cs_toolkit.execution_options import EXECUTION_VARIABLE
from cstorch.program import Program
from tests.systems import RunningSystem

pytestmark = pytest.mark.soak

MODELS = Path(__file__).parents[3] / "models"
PARAMS = {
    "fc_mnist": "params_fc_mnist.yaml",
    "resnet": "params_resnet_tiny.yaml",
    "bert": "params_bert_tiny.yaml",
    "gpt2": "params_gpt2_tiny.yaml",
}


def trained(name: str, model_dir: Path, steps: int, system: RunningSystem) -> dict[str, torch.Tensor]:
    """Return the weights of an example after a number of steps."""
    Program.reset()
    program = MODELS / name / "pytorch" / "run.py"
    params = program.parent / "configs" / PARAMS[name]
    flags = (f"--cs_ip={system.address}", f"--params={params}", f"--max_steps={steps}")
    sys.argv = [str(program), "--mode=train", f"--model_dir={model_dir}", *flags]
    runpy.run_path(str(program), run_name="__main__")
    checkpoint: dict[str, Any] = cstorch.load(model_dir / f"checkpoint_{steps}.mdl")
    return {key: torch.as_tensor(value) for key, value in checkpoint["model"].items()}


@pytest.mark.parametrize("name", PARAMS)
def test_weights_are_those_of_the_pipeline(
    name: str, system: RunningSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [])
    try:
        pipelined = trained(name, tmp_path / "pipelined", 20, system)
        monkeypatch.setenv(EXECUTION_VARIABLE, "weight_streaming")
        streamed = trained(name, tmp_path / "streamed", 20, system)
    finally:
        Program.reset()
    assert "weight_streaming" in (next(tmp_path.glob("streamed/**/cs_*/manifest.json"))).read_text()
    assert streamed.keys() == pipelined.keys()
    for key, expected in pipelined.items():
        torch.testing.assert_close(
            streamed[key], expected, rtol=1e-5, atol=2e-6, msg=lambda m, k=key: f"{k}: {m}"
        )
