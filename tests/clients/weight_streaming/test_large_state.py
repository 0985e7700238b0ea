"""A state that does not fit into the chief passes through it in parts; nothing else is different."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import cs_system.client.reservation
from estimator import CerebrasEstimator, CSRunConfig
from estimator.cs import state
from estimator.errors import CheckpointReadError
from tests.systems import RunningSystem

Example = Callable[[str], AbstractContextManager[dict[str, ModuleType]]]

PART_BYTES = 10_000


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes every state a large one, of many parts."""

    def change() -> None:
        monkeypatch.setattr(state, "LARGE_BYTES", 0)
        monkeypatch.setattr(state, "PART_BYTES", PART_BYTES)
        monkeypatch.setattr(cs_system.client.reservation, "LARGE_STATE_BYTES", 0)

    return change


def checkpoint(model_dir: Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(model_dir / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def trainer(modules: dict[str, ModuleType], model_dir: Path, address: str) -> tuple[Any, Any]:
    """An estimator and its functions."""
    program = modules["run"].PROGRAM
    params = program.merge_params(program.parse_arguments(["-m", "train"]))
    params["model"]["hidden_sizes"] = [64] * 4
    config = CSRunConfig(cs_ip=address, tf_random_seed=7, save_checkpoints_steps=2)
    functions = program.functions()
    made = CerebrasEstimator(
        functions.model_fn,
        model_dir,
        compile_dir=model_dir.parent / "artifacts",
        config=config,
        params=params,
    )
    return made, functions


def test_checkpoints_are_the_same(
    system: RunningSystem, example: Example, in_parts: Callable[[], None], tmp_path: Path
) -> None:
    with example("fc_mnist") as modules:
        for name in ("whole", "parts"):
            if name == "parts":
                in_parts()
            for last in (3, 5):  # resumes from the checkpoint of step 3
                estimator, functions = trainer(modules, tmp_path / name, system.address)
                estimator.train(functions.train_input_fn, max_steps=last)
        evaluated = estimator.evaluate(functions.eval_input_fn, steps=1)
    assert np.isfinite(evaluated["loss"])
    for step in (0, 2, 3, 4, 5):
        whole, parts = (checkpoint(tmp_path / name, step) for name in ("whole", "parts"))
        assert whole.keys() == parts.keys()
        for name, value in whole.items():
            assert value.dtype == parts[name].dtype
            np.testing.assert_array_equal(value, parts[name], err_msg=f"{name} at {step}")
    assert len(list((tmp_path / "whole").glob("model.ckpt-5.data-*"))) == 1
    assert len(list((tmp_path / "parts").glob("model.ckpt-5.data-*"))) > 10
    assert not list((tmp_path / "parts").glob("*-parts"))
    assert (tmp_path / "parts" / "model.ckpt-5.meta").exists()


def test_a_checkpoint_of_another_model(
    system: RunningSystem, example: Example, in_parts: Callable[[], None], tmp_path: Path
) -> None:
    in_parts()
    with example("fc_mnist") as modules:
        estimator, functions = trainer(modules, tmp_path / "model", system.address)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            step = tf.compat.v1.get_variable("global_step", (), tf.int64, tf.zeros_initializer())
            session.run(step.initializer)
            tf.compat.v1.train.Saver([step]).save(session, str(tmp_path / "model" / "model.ckpt"), 1)
        with pytest.raises(CheckpointReadError, match="it lacks the variables fc_0/kernel"):
            estimator.train(functions.train_input_fn, max_steps=3)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (lambda: [tf.zeros([3]), tf.random.normal([3])], True),
        (lambda: [2.0 * tf.random.normal([3]), tf.random.normal([3])], True),
        (lambda: [noise := tf.random.normal([3]), 2.0 * noise], False),
        (lambda: [first := tf.compat.v1.get_variable("first", [3]), 2.0 * first], False),
    ],
    ids=["constants", "own random numbers", "shared random numbers", "of a variable"],
)
def test_which_first_values_can_be_computed_in_parts(values: Callable[[], list[Any]], expected: bool) -> None:
    with tf.Graph().as_default():
        for number, value in enumerate(values()):
            if value.op.type != "VarHandleOp":
                tf.compat.v1.get_variable(f"v{number}", initializer=value, use_resource=True)
        assert state.can_initialize_in_parts(tf.compat.v1.global_variables()) is expected
