"""Programs of the tf.compat.v1 era turn eager execution and resource variables off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import importlib.util, pathlib, sys
import numpy as np
from estimator import import_tensorflow
import_tensorflow()
import tensorflow as tf
tf.compat.v1.disable_v2_behavior()
spec = importlib.util.spec_from_file_location("tiny", sys.argv[1])
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
from estimator import CerebrasEstimator, CSRunConfig, ModeKeys
from estimator.cs.program import TensorFlowFrontEnd
from estimator.input.dataset import InputSource

model_dir = pathlib.Path(sys.argv[2])
params = {"learning_rate": 0.05}
estimator = CerebrasEstimator(tiny.model_fn, model_dir, params=params, use_cs=False)
estimator.train(tiny.input_fn, steps=40)
assert estimator.evaluate(tiny.input_fn)["accuracy"] > 0.7
assert len(list(estimator.predict(tiny.input_fn))) == 24
config = CSRunConfig("127.0.0.1")
end = TensorFlowFrontEnd(
    tiny.model_fn, InputSource(tiny.input_fn, ModeKeys.TRAIN, params, config, {}), params, config, model_dir
)
assert end.program().batch_size == 8
assert end.initial_state()["state.global_step"] == 40
assert [a.shape for a in next(end.batches(1))] == [(8, 4), (8,)]
end.save(41, {"state.global_step": np.asarray(41)})
end.close()
assert estimator.get_variable_value("global_step") == 41
assert not tf.executing_eagerly()
"""


def test_everything_works_without_v2_behavior(tmp_path: Path) -> None:
    tiny = Path(__file__).with_name("conftest.py")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tiny), str(tmp_path / "model")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
