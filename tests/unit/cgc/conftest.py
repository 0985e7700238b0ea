from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp


@pytest.fixture
def step_of(example: Callable[[str], Any]) -> Callable[[str], ModuleOp]:
    """The training step of an example model with its smallest parameters."""
    tf = pytest.importorskip("tensorflow")

    from cgc.importers.tensorflow import import_step
    from cs_toolkit.loader import load_model
    from estimator import ModeKeys
    from estimator.calling import model_graph

    def build(name: str) -> ModuleOp:
        with example(name) as modules:
            program = modules["run"].PROGRAM
            params = load_model(program.folder / program.params_file, program.params).model_dump()
            functions = program.functions()
            with tf.Graph().as_default():
                spec = functions.train_input_fn(params).element_spec
            with model_graph(1) as step:
                inputs = [tf.compat.v1.placeholder(s.dtype, s.shape) for s in tf.nest.flatten(spec)]
                features, labels = tf.nest.pack_sequence_as(spec, inputs)
                result = functions.model_fn(features, labels, ModeKeys.TRAIN, params)
                return import_step(
                    tf.compat.v1.get_default_graph(),
                    inputs=inputs,
                    outputs={"loss": result.loss},
                    updates=[result.train_op],
                    mode="train",
                    seed=1,
                    global_step=step,
                ).module

    return build
