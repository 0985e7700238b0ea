"""The common parts of importers, used as an importer of another framework would use them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from cgc.cirh import ops
from cgc.cirh.interface import step_interface
from cgc.cirh.module import verify_module
from cgc.cirh.types import tensor_type
from cgc.errors import GraphImportError, GraphTypeError, UnsupportedOpsError
from cgc.importers.decompositions import indexing, special
from cgc.importers.diagnostics import Described, Kind, Operation, raise_if_any, unknown_operations
from cgc.importers.emit import Emitter
from cgc.importers.module import StateTensor, count_step, require_mode, state_types, step_module
from cgc.kernels import match_kernels
from cgc.lowering.interpret import step_function
from cs_toolkit.step import GLOBAL_STEP, MODEL_STATE

WEIGHT = StateTensor("layers.0.weight", MODEL_STATE + "layers.0.weight", "float32", (6, 4))
STEP = StateTensor("step", GLOBAL_STEP, "int64", ())


def imported() -> ModuleOp:
    """`y = asinh(flip(x @ weight))` of a module `layers.0`; the weight loses y's sum."""
    block = Block(arg_types=[*state_types([WEIGHT, STEP], {}), tensor_type((8, 6), "float32")])
    weight, step, x = block.args
    e = Emitter(block)
    e.label("linear", "net.py:7", ("layers", "0"))
    product = e.emit(ops.MatMulOp(x, weight))
    e.label("flip", "net.py:8", ())
    y = special.asinh(e, indexing.reverse(e, product, 1))
    written = {
        WEIGHT.resource_name: e.sub(weight, e.reduce("ADD", y, [0, 1])),
        STEP.resource_name: count_step(e, step),
    }
    return step_module(block, [WEIGHT, STEP], written, {"loss": e.reduce("MEAN", y, [0, 1])}, "train", 3)


def test_a_step_of_another_framework() -> None:
    module = imported()
    verify_module(module)
    interface = step_interface(module)
    assert [spec.name for spec in interface.state] == [WEIGHT.resource_name, GLOBAL_STEP]
    assert interface.updated == (WEIGHT.resource_name, GLOBAL_STEP)
    assert [spec.name for spec in interface.inputs] == ["input_0"]
    assert [spec.name for spec in interface.outputs] == ["output_loss"]
    rng = np.random.default_rng(1)
    x, weight = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 6), (6, 4)))
    state, (loss,) = jax.jit(step_function(module))((weight, np.int32(4)), (x,))
    y = np.arcsinh((x @ weight)[:, ::-1])
    np.testing.assert_allclose(loss, y.mean(), rtol=1e-5)
    np.testing.assert_allclose(state[0], weight - y.sum(), rtol=1e-5)
    assert int(state[1]) == 5


def test_its_layers_name_kernels() -> None:
    module = imported()
    (product,) = (op for op in module.walk() if isinstance(op, ops.MatMulOp))
    assert (product.node_name, product.source, product.layer) == ("linear", "net.py:7", ("layers", "0"))
    kernel = next(kernel for kernel in match_kernels(module).kernels if "cirh.MatMul" in kernel.ops)
    assert kernel.source == "net.py:7"


def test_state_of_unknown_types_is_reported_immediately() -> None:
    odd = [StateTensor(name, MODEL_STATE + name, "complex64", (2,)) for name in ("a", "b")]
    with pytest.raises(GraphTypeError) as caught:
        state_types([WEIGHT, *odd], {})
    assert [fault.split(", expected")[0] for fault in caught.value.faults] == [
        "variable a has element type complex64",
        "variable b has element type complex64",
    ]


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(GraphImportError, match="mode is 'training', expected one of train, eval, infer"):
        require_mode("training")


def test_problems_of_operations_are_worded_alike() -> None:
    def fold(number: int, line: int) -> Operation:
        return Operation(
            "aten::fold", f"fold_{number}", f"net.py:{line}", (Described("float32", (8, None)),), "cut"
        )

    remedies = {Kind.UNKNOWN_OP: "write them otherwise"}
    problems = unknown_operations([fold(1, 3), fold(2, 3), fold(3, 9)], remedies)
    assert [problem.text for problem in problems] == [
        "aten::fold: node 'fold_1', line net.py:3 (2 such nodes), result float32[8,?]; cut",
        "aten::fold: node 'fold_3', line net.py:9, result float32[8,?]; cut",
    ]
    plain = Operation("aten::mm", "mm", None, (Described("float32", None),) * 5)
    problems.append(plain.problem(Kind.USAGE, "shapes do not fit", remedies))
    first = "[shape unknown], float32" * 3
    assert (
        problems[-1].text
        == f"aten::mm: node 'mm', result float32{first}[shape unknown], ...: shapes do not fit"
    )
    with pytest.raises(UnsupportedOpsError) as caught:
        raise_if_any(problems, remedies)
    details = caught.value.details
    assert [(fault.node, fault.source, fault.shape) for fault in details] == [
        ("fold_1", "net.py:3", (8, None)),
        ("fold_3", "net.py:9", (8, None)),
        ("mm", None, None),
    ]
    assert details[0].what_to_do == "cut"
    assert "what to do: write them otherwise" in str(caught.value)
