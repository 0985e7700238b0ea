"""A program that names no execution runs on a wafer that its layers do not fit together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cs_toolkit import config_file
from estimator import CerebrasEstimator, CSRunConfig
from tests.systems import RunningSystem, running_system

MODELS = Path(__file__).parents[3] / "models"
DOES_NOT_FIT = "execution auto: weight streaming, because the layers do not fit the wafer together"
SHARED = "execution auto: weight streaming, because num_csx is 2"

Example = Callable[[str], AbstractContextManager[dict[str, ModuleType]]]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """Two systems of which each is too small for all layers together."""
    folder = tmp_path_factory.mktemp("crowded")
    text = config_file("cs2.yaml").read_text()
    assert "width: 740\nheight: 416\n" in text
    fabric = folder / "crowded.yaml"
    fabric.write_text(text.replace("width: 740\nheight: 416\n", "width: 3\nheight: 3\n"))
    with running_system(folder, [f"--fabric={fabric}", "--num-csx=2"]) as system:
        yield system


def test_an_estimator_trains_evaluates_and_predicts(
    crowded: RunningSystem, example: Example, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with example("fc_mnist") as modules:
        program = modules["run"].PROGRAM
        params = program.merge_params(program.parse_arguments(["-m", "train"]))
        functions = program.functions()

        def estimator(num_csx: int, **memory: Any) -> CerebrasEstimator:
            config = CSRunConfig(cs_ip=crowded.address, num_csx=num_csx, **memory)
            return CerebrasEstimator(functions.model_fn, tmp_path, config=config, params=params)

        made = estimator(1)
        assert made.config.execution == "auto"
        made.train(functions.train_input_fn, max_steps=4)
        assert DOES_NOT_FIT in caplog.text
        assert SHARED not in caplog.text
        assert np.isfinite(made.evaluate(functions.eval_input_fn, steps=2)["loss"])
        assert len(list(zip(range(3), made.predict(functions.eval_input_fn), strict=False))) == 3
        assert "activations (" not in caplog.text
        estimator(2, max_act_per_csx="300 KB").train(functions.train_input_fn, max_steps=6)
    assert SHARED in caplog.text
    assert "activations (recompute auto): " in caplog.text
    assert "max_act_per_csx allows 300,000 bytes in each of 2 systems" in caplog.text


def test_a_pytorch_program_trains_and_evaluates(
    crowded: RunningSystem, run_torch_program: Callable[..., str], tmp_path: Path
) -> None:
    program = MODELS / "fc_mnist" / "pytorch" / "run.py"
    params = tmp_path / "params.yaml"
    plain = (program.parent / "configs" / "params_fc_mnist.yaml").read_text()
    params.write_text(f"{plain}  recompute: all\n  max_act_per_csx: 1000000\n")
    words = (f"-p={params}", f"--cs_ip={crowded.address}", f"--model_dir={tmp_path / 'model'}")
    log = run_torch_program(program, *words, "-m=train_and_eval", "--max_steps=4", "--eval_steps=2")
    log += run_torch_program(program, *words, "-m=train", "--max_steps=6", "--num_csx=2")
    assert DOES_NOT_FIT in log
    assert SHARED in log
    assert "activations (recompute all): " in log
    assert "max_act_per_csx allows 1.0 MB in each of 2 systems" in log
    assert "Avg Eval. Loss" in log
