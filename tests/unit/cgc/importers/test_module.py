"""The imported module: names, order, aliases, debug attributes, omitted ops."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh import ops
from cgc.cirh.interface import step_interface
from cgc.cirh.text import canonical_text, parse_module, print_module
from cgc.importers.tensorflow import ImportedStep, import_step
from cs_toolkit.step import TensorSpec

tf1 = tf.compat.v1


def build_step(optimizer: Any = None, mode: str = "train") -> ImportedStep:
    """A two-layer network of Keras layers with a metric, built in a fresh graph."""
    tf.keras.utils.clear_session(free_memory=False)
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [8, 6], "images")
        y = tf1.placeholder(tf.int64, [8], "labels")
        step = tf1.train.get_or_create_global_step()
        hidden = tf.keras.layers.Dropout(0.1, seed=1)(tf.keras.layers.Dense(4)(x), training=mode == "train")
        logits = tf.keras.layers.Dense(3, activation="tanh")(hidden)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        if mode == "train":
            optimizer = optimizer or tf1.train.AdamOptimizer(0.01)
            updates = [optimizer.minimize(loss, global_step=step)]
        else:
            updates = [tf1.metrics.mean(loss, name="average")[1]]
        return import_step(
            graph, inputs=[x, y], outputs={"loss": loss}, updates=updates, mode=mode, seed=5, global_step=step
        )


def ops_of(module: ModuleOp, op_type: type) -> list[Any]:
    return [op for op in module.walk() if isinstance(op, op_type)]


def test_training_state_is_named_after_its_variables_in_creation_order() -> None:
    step = build_step()
    names = [spec.name for spec in step_interface(step.module).state]
    assert names[:6] == [
        "state.global_step",
        "state.model.seed_generator/seed_generator_state",
        "state.model.dense/kernel",
        "state.model.dense/bias",
        "state.model.dense_1_1/kernel",
        "state.model.dense_1_1/bias",
    ]
    assert names[6:] == [
        f"state.optimizer.{name}"
        for name in (
            "beta1_power",
            "beta2_power",
            "dense/kernel/Adam",
            "dense/kernel/Adam_1",
            "dense/bias/Adam",
            "dense/bias/Adam_1",
            "dense_1_1/kernel/Adam",
            "dense_1_1/kernel/Adam_1",
            "dense_1_1/bias/Adam",
            "dense_1_1/bias/Adam_1",
        )
    ]
    assert step.variables["state.optimizer.dense/bias/Adam_1"] == "dense/bias/Adam_1"
    assert step_interface(step.module).updated == tuple(names)


def test_inputs_and_outputs_are_in_the_callers_order() -> None:
    interface = step_interface(build_step().module)
    assert interface.inputs == (
        TensorSpec("input_0", "float32", (8, 6)),
        TensorSpec("input_1", "int64", (8,)),
    )
    assert interface.outputs == (TensorSpec("output_loss", "float32", ()),)


def test_evaluation_takes_what_it_reads_and_names_metrics() -> None:
    step = build_step(mode="eval")
    interface = step_interface(step.module)
    assert [spec.name for spec in interface.state] == [
        "state.model.dense/kernel",
        "state.model.dense/bias",
        "state.model.dense_1_1/kernel",
        "state.model.dense_1_1/bias",
        "state.metric.average/total",
        "state.metric.average/count",
    ]
    assert interface.updated == ("state.metric.average/total", "state.metric.average/count")


def test_the_same_program_gives_the_same_text() -> None:
    first, second = build_step().module, build_step().module
    assert print_module(first) == print_module(second)
    assert 'cs.mode = "train"' in canonical_text(first)
    assert "cs.seed = 5" in canonical_text(first)


def test_text_parses_back_to_the_same_module() -> None:
    text = print_module(build_step().module)
    assert print_module(parse_module(text)) == text


def test_ops_carry_the_node_and_the_users_line() -> None:
    lines, first = inspect.getsourcelines(build_step)
    module = build_step().module
    wanted = {
        "dense": next(first + i for i, line in enumerate(lines) if "Dropout" in line),
        "dense_1": next(first + i for i, line in enumerate(lines) if "tanh" in line),
    }
    matmuls = {op.node_name: op.source for op in ops_of(module, ops.MatMulOp)}
    assert matmuls["dense_1/MatMul"] == f"{__file__}:{wanted['dense']}"
    # The gradient of a layer belongs to the layer's line, not to that of minimize().
    assert matmuls["gradients/dense_1_2/MatMul_grad/MatMul_1"] == f"{__file__}:{wanted['dense_1']}"
    (*_, adam) = ops_of(module, ops.AdamOp)
    minimize = next(first + i for i, line in enumerate(lines) if "minimize" in line)
    assert adam.source == f"{__file__}:{minimize}"


def test_broadcasting_is_explicit(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [2, 3])
    step = import_step(
        graph, inputs=[x], outputs={"y": tf.add(x, [1.0, 2.0, 3.0]) * 2.0}, updates=[], mode="infer", seed=0
    )
    broadcasts = [
        (op.result.type.get_shape(), op.broadcast_dimensions)
        for op in ops_of(step.module, ops.BroadcastInDimOp)
    ]
    assert broadcasts == [((2, 3), (1,)), ((2, 3), ())]


def test_equal_scalars_are_one_constant(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [2, 3])
    y = (x * 0.5 + 0.5) - tf.constant(0.5)
    step = import_step(graph, inputs=[x], outputs={"y": y}, updates=[], mode="infer", seed=0)
    assert len(ops_of(step.module, ops.ConstOp)) == 1


def test_shape_arithmetic_leaves_no_ops(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [4, 3, 2])
    shape = tf.shape(x)
    flat = tf.reshape(x, tf.stack([shape[0], tf.reduce_prod(shape[1:])]))
    step = import_step(graph, inputs=[x], outputs={"y": flat}, updates=[], mode="infer", seed=0)
    (reshape,) = [op for op in step.module.walk() if op.name.startswith("cirh.")]
    assert isinstance(reshape, ops.ReshapeOp)
    assert reshape.result.type.get_shape() == (4, 6)


def test_ops_that_the_step_does_not_need_are_left_out(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [2])
    unused = tf1.get_variable("unused", [2])
    tf.strings.as_string(x + unused)
    with tf.control_dependencies([tf.debugging.assert_greater(x, 0.0, message="must be positive")]):
        y = tf.identity(x)
    step = import_step(graph, inputs=[x], outputs={"y": y}, updates=[], mode="infer", seed=0)
    assert step.variables == {}
    assert not [op for op in step.module.walk() if isinstance(op, ops.AddOp)]


def test_an_input_that_the_step_ignores_stays_an_input(graph: tf.Graph) -> None:
    x, y = tf1.placeholder(tf.float32, [2]), tf1.placeholder(tf.int32, [2])
    step = import_step(graph, inputs=[y, x], outputs={"y": x}, updates=[], mode="infer", seed=0)
    assert [spec.dtype for spec in step_interface(step.module).inputs] == ["int32", "float32"]


def test_tensors_of_an_iterator_can_be_inputs(graph: tf.Graph) -> None:
    data = tf.data.Dataset.from_tensors(({"a": np.zeros((4, 2), np.float32)}, np.zeros(4, np.int32))).repeat()
    features, labels = tf1.data.make_one_shot_iterator(data).get_next()
    y = tf.reduce_sum(features["a"]) + tf.cast(labels[0], tf.float32)
    step = import_step(
        graph, inputs=[features["a"], labels], outputs={"y": y}, updates=[], mode="infer", seed=0
    )
    assert [spec.shape for spec in step_interface(step.module).inputs] == [(4, 2), (4,)]


def test_a_constant_can_be_an_output(graph: tf.Graph, compile_step: Any) -> None:
    step = import_step(
        graph, inputs=[], outputs={"rate": tf.constant(0.25) * 2}, updates=[], mode="infer", seed=0
    )
    assert compile_step(step, {}, [()]).series("rate").tolist() == [0.5]


def test_summaries_that_the_train_op_waits_for_are_left_out(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [2])
    mean = tf.reduce_mean(x)
    tf1.summary.histogram("x", x)
    tf1.summary.scalar("mean", mean)
    with tf.control_dependencies([tf1.summary.merge_all()]):
        update = tf1.train.get_or_create_global_step().assign_add(1)
    step = import_step(
        graph, inputs=[x], outputs={"summary/mean": mean}, updates=[update], mode="train", seed=0
    )
    interface = step_interface(step.module)
    assert [spec.name for spec in interface.outputs] == ["output_summary/mean"]
    assert interface.updated == ("state.global_step",)


@pytest.mark.parametrize("module", ["cgc", "cgc.importers"])
def test_importing_the_package_loads_no_tensorflow(module: str) -> None:
    code = f"import sys, {module}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
