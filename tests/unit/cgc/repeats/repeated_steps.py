"""Steps of a repeated block: forward, backward in the opposite order, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Block, SSAValue

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.interface import (
    ALIASING_OUTPUT,
    INPUT_NAME,
    MODE,
    OUTPUT_NAME,
    RESOURCE_NAME,
    build_graph_function,
)
from cgc.cirh.types import tensor_type

TENSOR = tensor_type((4, 4), "float32")

Emit = Callable[[CirhOp], SSAValue]
Part = Callable[[Emit, int, Sequence[SSAValue]], SSAValue]
"""Makes the ops of a copy: how to add one, which copy, what it may read; gives what the next copy reads."""


@dataclass(frozen=True)
class RepeatedBlock:
    """A block.

    Attributes:
        forward: reads the activation, the weight, what all copies share, the input and the step.
        backward: reads the gradient, the activation that the copy has read, that it has made, and the weight.
    """

    forward: Part
    backward: Part


def residual_forward(emit: Emit, copy: int, read: Sequence[SSAValue]) -> SSAValue:
    x, weight, shared, _, step = read
    product = emit(ops.MatMulOp(x, weight))
    drawn = emit(ops.RandomUniformOp(step, (4, 4), 1, 100 + 7 * copy))
    kept = emit(ops.SelectOp(emit(ops.CompareOp(drawn, shared, "GE")), product, shared))
    half = emit(ops.BroadcastInDimOp(emit(ops.ConstOp.from_array(0.5)), (4, 4), ()))
    return emit(ops.AddOp(x, emit(ops.MulOp(half, emit(ops.ReluOp(kept))))))


def residual_backward(emit: Emit, _copy: int, read: Sequence[SSAValue]) -> SSAValue:
    gradient, x, made, weight = read
    inner = emit(ops.MatMulOp(emit(ops.MulOp(gradient, made)), weight, transpose_b=True))
    return emit(ops.AddOp(gradient, emit(ops.NegOp(emit(ops.NegOp(emit(ops.MulOp(inner, x))))))))


RESIDUAL = RepeatedBlock(residual_forward, residual_backward)


def repeated_step(
    copies: int, block: RepeatedBlock = RESIDUAL, change: Part | None = None, at: int | None = None
) -> ModuleOp:
    """A training step, its gradients clipped by their joint norm.

    Args:
        copies: of the block.
        block: what is repeated.
        change: the forward part of one copy instead.
        at: which; the one in the middle without it.
    """
    body = Block(arg_types=[tensor_type((), "int64"), *[TENSOR] * copies, TENSOR])
    step, *weights, x = body.args

    def emit(op: CirhOp) -> SSAValue:
        body.add_op(op.set_origin(f"node{len(body.ops)}", "model.py:1", ("block", str(len(body.ops)))))
        return op.results[0]

    shared = emit(ops.TanhOp(x))
    activations: list[SSAValue] = [x]
    for copy, weight in enumerate(weights):
        forward = (
            change if change is not None and copy == (copies // 2 if at is None else at) else block.forward
        )
        activations.append(forward(emit, copy, (activations[-1], weight, shared, x, step)))
    gradient, gradients = emit(ops.ExpOp(activations[-1])), []
    for copy in reversed(range(copies)):
        read = gradient, activations[copy], activations[copy + 1], weights[copy]
        gradients.append(emit(ops.MatMulOp(activations[copy], gradient, transpose_a=True)))
        gradient = block.backward(emit, copy, read)
    gradients.reverse()
    squares = [
        emit(ops.ReshapeOp(emit(ops.ReduceOp(emit(ops.MulOp(g, g)), "ADD", (0, 1))), (1,))) for g in gradients
    ]
    norm = emit(ops.SqrtOp(emit(ops.ReduceOp(emit(ops.ConcatOp(squares, 0)), "ADD", (0,)))))
    scale = emit(ops.BroadcastInDimOp(norm, (4, 4), ()))
    new = [
        emit(ops.SubOp(weight, emit(ops.DivOp(g, scale))))
        for weight, g in zip(weights, gradients, strict=True)
    ]
    loss = emit(ops.ReduceOp(activations[-1], "ADD", (0, 1)))
    terminator = ReturnOp(*new, loss)
    body.add_op(terminator)
    arguments: list[dict[str, Attribute]] = [{RESOURCE_NAME: StringAttr("state.global_step")}]
    for copy in range(copies):
        name = StringAttr(f"state.model.block{copy}/kernel")
        arguments.append({RESOURCE_NAME: name, ALIASING_OUTPUT: IntegerAttr(copy, i64)})
    arguments.append({INPUT_NAME: StringAttr("input_0")})
    results: list[dict[str, Attribute]] = [*({} for _ in new), {OUTPUT_NAME: StringAttr("output_loss")}]
    function = build_graph_function(body, terminator, arguments, results)
    function.attributes[MODE] = StringAttr("train")
    return ModuleOp([function])
