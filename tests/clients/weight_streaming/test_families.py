"""Every example program trains by weight streaming to the numbers of the pipelined execution."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, CSRunConfig
from tests.programs.tf.events import read_losses
from tests.systems import RunningSystem

pytestmark = pytest.mark.soak

STEPS, SEED = 20, 11

CHANGES = {
    # Adam makes full steps of gradients that are nothing but rounding errors, as those of the keys' bias.
    "transformer": {"epsilon": 1e-3},
    "unet": {"optimizer_type": "momentum", "learning_rate": 0.02},
}
"""Of the optimizer, so that a rounding error stays one."""

Example = Callable[[str], AbstractContextManager[dict[str, ModuleType]]]


def variables(model_dir: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(model_dir))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize("name", ["bert", "fc_mnist", "gpt2", "resnet", "transformer", "unet"])
def test_losses_and_weights_are_those_of_the_pipeline(
    name: str, system: RunningSystem, example: Example, tmp_path: Path
) -> None:
    with example(name) as modules:
        program = modules["run"].PROGRAM
        path = str(program.folder / program.params_file)
        functions = program.functions()
        for execution in ("pipelined", "weight_streaming"):
            params = program.merge_params(program.parse_arguments(["-m", "train", "-p", path]))
            params["optimizer"].update(CHANGES.get(name, {}))
            config = CSRunConfig(
                cs_ip=system.address, tf_random_seed=SEED, save_summary_steps=1, execution=execution
            )
            estimator = CerebrasEstimator(
                functions.model_fn, tmp_path / execution, config=config, params=params
            )
            estimator.train(functions.train_input_fn, max_steps=STEPS)
            if execution == "pipelined":
                continue
            result = estimator.evaluate(functions.eval_input_fn, steps=2)
            assert np.isfinite(result["loss"])
    pipelined, streamed = (read_losses(tmp_path / e) for e in ("pipelined", "weight_streaming"))
    assert len(pipelined) == STEPS
    np.testing.assert_allclose(streamed, pipelined, rtol=1e-6)
    expected = variables(tmp_path / "pipelined")
    for variable, value in variables(tmp_path / "weight_streaming").items():
        np.testing.assert_allclose(value, expected[variable], rtol=1e-5, atol=1e-6, err_msg=variable)
