"""Adds range checks of labels and ids to a step: outputs with their minimum and maximum in every batch.

On a CPU a framework raises an error for a label that is no class, and for an id outside of its table. The
device raises none, so the chief checks the outputs that arrive with the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from cgc.cirh.base import CirhOp
from cgc.cirh.interface import INPUT_NAME, OUTPUT_NAME, arguments_and_results, graph_function
from cgc.cirh.ops import (
    BroadcastInDimOp,
    CastOp,
    ConstOp,
    GatherOp,
    ReduceOp,
    ReshapeOp,
    SelectOp,
    SliceOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
    TransposeOp,
)
from cgc.cirh.softmax import PADDING_LABEL
from cgc.cirh.types import element_count, shape_of, tensor_of
from cs_runtime.step_checks import RangeCheck

_MOVES = (BroadcastInDimOp, CastOp, ReshapeOp, SliceOp, TransposeOp)


@dataclass(frozen=True)
class _Use:
    """An op that reads integers, of which `low <= value < high` are valid."""

    numbers: SSAValue
    low: int
    high: int
    op: CirhOp
    what: str


def add_range_checks(module: ModuleOp, input_names: Sequence[str]) -> tuple[RangeCheck, ...]:
    """Add outputs with the range of the labels of a step, and of ids of its batch that index a table.

    Args:
        module: An imported step; two outputs are added for every check.
        input_names: The user's names of the batch inputs, in order.

    Returns:
        The checks. Several ops that read the same tensor with the same limits share one.
    """
    function = graph_function(module)
    inputs = _inputs(function, input_names)
    uses: dict[tuple[SSAValue, int, int], _Use] = {}
    for op in function.body.block.ops:
        for use in _uses(op, inputs):
            uses.setdefault((use.numbers, use.low, use.high), use)
    checked = [use for use in uses.values() if element_count(tensor_of(use.numbers))]
    return tuple(_add_check(function, number, use, inputs) for number, use in enumerate(checked))


def _inputs(function: FuncOp, names: Sequence[str]) -> dict[SSAValue, str]:
    arguments, _ = arguments_and_results(function)
    pairs = zip(function.args, arguments, strict=True)
    fed = [value for value, argument in pairs if argument.text(INPUT_NAME) is not None]
    return dict(zip(fed, names, strict=True))


def _uses(op: object, inputs: Mapping[SSAValue, str]) -> Iterator[_Use]:
    if isinstance(op, SparseSoftmaxCrossEntropyWithLogitsOp) and not op.ignore_out_of_range:
        yield _Use(op.labels, PADDING_LABEL, shape_of(op.logits)[-1], op, "the labels")
    # Computed ids may be out of range on purpose, for rows that are not used.
    if isinstance(op, GatherOp) and _origin(op.indices) in inputs:
        yield _Use(op.indices, 0, shape_of(op.x)[op.axis], op, "the rows")


def _origin(value: SSAValue) -> SSAValue:
    """Return the value that a chain of moves, such as reshapes and casts, starts from."""
    while isinstance(value.owner, _MOVES):
        value = value.owner.operands[0]
    return value


def _named_source(numbers: SSAValue) -> SSAValue:
    """Return the value with the user's name, also where an importer replaces some elements by a constant."""
    source = _origin(numbers)
    while isinstance(source.owner, SelectOp) and isinstance(_origin(source.owner.on_false).owner, ConstOp):
        source = _origin(source.owner.on_true)
    return source


def _add_check(function: FuncOp, number: int, use: _Use, inputs: Mapping[SSAValue, str]) -> RangeCheck:
    names = [f"output_range/{number}/{end}" for end in ("min", "max")]
    for name, kind in zip(names, ("MIN", "MAX"), strict=True):
        extreme = ReduceOp(use.numbers, kind, range(len(shape_of(use.numbers))))
        _add_output(function, extreme.take_origin(use.op), name)
    source = _named_source(use.numbers)
    owner = source.owner
    computed = owner.node_name if isinstance(owner, CirhOp) else None
    place = f" ({use.op.source})" if use.op.source else ""
    return RangeCheck(
        tensor=inputs.get(source) or computed or "a tensor without a name",
        low=use.low,
        high=use.high,
        use=f"{use.what} of '{use.op.node_name}'{place}",
        minimum=names[0],
        maximum=names[1],
    )


def _add_output(function: FuncOp, op: ReduceOp, name: str) -> None:
    """Add an op to the step, and its result to the outputs."""
    returned = function.get_return_op()
    assert returned is not None
    attributes = function.res_attrs or [DictionaryAttr({}) for _ in returned.operands]
    Rewriter.insert_op(op, InsertPoint.before(returned))
    Rewriter.replace_op(returned, ReturnOp(*returned.operands, op.result))
    inputs, outputs = function.function_type.inputs, function.function_type.outputs
    function.function_type = FunctionType.from_attrs(inputs, ArrayAttr([*outputs, op.result.type]))
    function.res_attrs = ArrayAttr([*attributes, DictionaryAttr({OUTPUT_NAME: StringAttr(name)})])
