"""A whole training step, interpreted, against the same network written in numpy."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, UnrealizedConversionCastOp
from xdsl.ir import Block

from cgc.cirh import ops
from cgc.cirh.interface import step_interface
from cgc.cirh.text import parse_module
from cgc.cirh.types import tensor_type
from cgc.errors import InvalidModuleError, LoweringError
from cgc.lowering import jax_table
from cgc.lowering.interpret import step_function
from cs_toolkit.step import DtypeError, device_dtype
from tests.programs.steps import MLP_TRAIN

KEEP = 0.8


@pytest.fixture
def module():
    return parse_module(MLP_TRAIN.read_text(), str(MLP_TRAIN))


def initial_state(interface, rng):
    state = {}
    for spec in interface.state:
        dtype = device_dtype(spec.dtype)
        state[spec.name] = np.zeros(spec.shape, dtype)
        if spec.name.startswith("state.model."):
            state[spec.name] = rng.standard_normal(spec.shape).astype(dtype)
    state["state.optimizer.beta1_power"] = np.float32(0.9)
    state["state.optimizer.beta2_power"] = np.float32(0.999)
    return state


def masks(step, shapes):
    """The dropout masks of the step, drawn by the ops themselves."""
    drawn = []
    for op_seed, shape in enumerate(shapes):
        block = Block(arg_types=[tensor_type([], "int32")])
        op = ops.RandomUniformOp(block.args[0], shape, 1, op_seed)
        drawn.append((np.asarray(jax_table.lower(op, np.int32(step))[0]) >= np.float32(0.2)) / KEEP)
    return drawn


def numpy_step(state, x, labels):
    """One step of the network in float64: (new state, loss)."""
    state = {name: np.asarray(value, np.float64) for name, value in state.items()}
    kernels = [state[f"state.model.dense_{i}/kernel"] for i in range(3)]
    biases = [state[f"state.model.dense_{i}/bias"] for i in range(3)]
    step = int(state["state.global_step"])
    dropped = masks(step, [(len(x), 6), (len(x), 5)])
    activations, before = [x.astype(np.float64)], []
    for kernel, bias, mask in zip(kernels[:2], biases[:2], dropped, strict=True):
        before.append(activations[-1] @ kernel + bias)
        activations.append(np.maximum(before[-1], 0) * mask)
    logits = activations[-1] @ kernels[2] + biases[2]
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss = -log_p[np.arange(len(x)), labels].mean()
    delta = (np.exp(log_p) - np.eye(4)[labels]) / len(x)
    grads = {}
    for i in (2, 1, 0):
        grads[f"dense_{i}/kernel"], grads[f"dense_{i}/bias"] = activations[i].T @ delta, delta.sum(0)
        if i:
            delta = (delta @ kernels[i].T) * dropped[i - 1] * (before[i - 1] > 0)
    rate = (
        1e-3 * np.sqrt(1 - state["state.optimizer.beta2_power"]) / (1 - state["state.optimizer.beta1_power"])
    )
    new = dict(state)
    for name, grad in grads.items():
        m = 0.9 * state[f"state.optimizer.{name}/Adam"] + 0.1 * grad
        v = 0.999 * state[f"state.optimizer.{name}/Adam_1"] + 0.001 * grad**2
        new[f"state.optimizer.{name}/Adam"], new[f"state.optimizer.{name}/Adam_1"] = m, v
        new[f"state.model.{name}"] = state[f"state.model.{name}"] - rate * m / (np.sqrt(v) + 1e-8)
    new["state.optimizer.beta1_power"] *= 0.9
    new["state.optimizer.beta2_power"] *= 0.999
    new["state.global_step"] += 1
    return new, loss


def test_twenty_training_steps_equal_the_network_in_numpy(module, rng):
    interface = step_interface(module)
    step = jax.jit(step_function(module))
    state = initial_state(interface, rng)
    expected = state
    x = rng.standard_normal((8, 12)).astype(np.float32)
    labels = rng.integers(0, 4, 8).astype(np.int32)
    for _ in range(20):
        values, (loss,) = step([state[spec.name] for spec in interface.state], [x, labels])
        state = {spec.name: value for spec, value in zip(interface.state, values, strict=True)}
        expected, expected_loss = numpy_step(expected, x, labels)
        assert float(loss) == pytest.approx(expected_loss, rel=1e-5)
    for name, value in state.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert state["state.global_step"] == 20


def test_every_op_of_the_dialect_has_a_lowering():
    assert set(jax_table.LOWERINGS) == set(ops.ALL_OPS)


def test_state_that_is_not_replaced_is_passed_through_in_order():
    module = parse_module(
        """
        func.func @graph(%x: tensor<2xf32> {cs.input_name = "input_0"},
                         %frozen: tensor<2xf32> {tf.resource_name = "state.model.frozen"},
                         %step: tensor<i64> {tf.resource_name = "state.global_step",
                                             tf.aliasing_output = 1 : i64})
            -> (tensor<2xf32> {cs.output_name = "output_sum"}, tensor<i64>,
                tensor<2xf32> {cs.output_name = "output_copy"}) {
          %one = cirh.Const dense<1> : tensor<i64>
          %next = cirh.Add %step, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
          %sum = cirh.Add %x, %frozen : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
          func.return %sum, %next, %x : tensor<2xf32>, tensor<i64>, tensor<2xf32>
        }"""
    )
    frozen, x = np.float32([1, 2]), np.float32([10, 20])
    state, outputs = step_function(module)([frozen, np.int32(4)], [x])
    assert [np.asarray(v).tolist() for v in state] == [[1, 2], 5]
    assert [np.asarray(v).tolist() for v in outputs] == [[11, 22], [10, 20]]


def test_wrong_number_of_values_is_refused(module):
    with pytest.raises(LoweringError, match="got 1 state values and 3 inputs, expected 21 and 2"):
        step_function(module)([0], [0, 0, 0])


def test_an_op_without_lowering_is_named_with_node_and_line(module, monkeypatch):
    monkeypatch.delitem(jax_table.LOWERINGS, ops.AdamOp)
    interface = step_interface(module)
    values = [np.zeros(s.shape, device_dtype(s.dtype)) for s in (*interface.state, *interface.inputs)]
    with pytest.raises(LoweringError, match=r"cirh\.Adam, node 'Adam/.*model\.py:\d+.*no lowering"):
        jax.eval_shape(step_function(module), values[: len(interface.state)], values[len(interface.state) :])


def test_ops_of_other_dialects_are_refused(module):
    (function,) = module.body.block.ops
    cast = UnrealizedConversionCastOp.get([function.body.block.args[0]], [function.body.block.args[0].type])
    function.body.block.insert_op_before(cast, function.body.block.first_op)
    interface = step_interface(module)
    values = [np.zeros(s.shape, device_dtype(s.dtype)) for s in (*interface.state, *interface.inputs)]
    with pytest.raises(LoweringError, match="unrealized_conversion_cast is not an op of CIRH"):
        step_function(module)(values[: len(interface.state)], values[len(interface.state) :])


def test_a_module_without_graph_is_refused():
    with pytest.raises(InvalidModuleError, match="@graph"):
        step_function(ModuleOp([]))


def test_64_bit_float_has_no_device_type():
    assert (device_dtype("int64"), device_dtype("float32")) == ("int32", "float32")
    with pytest.raises(DtypeError, match="float64"):
        device_dtype("float64")
