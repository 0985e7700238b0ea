"""Labels and ids whose range a run checks: the step puts out the smallest and the largest of every batch.

A framework on a CPU ends with an error for a label that is no class, and for an id outside of its table. The
device has no errors, so the chief looks at what comes back with the loss.
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
from cs_runtime.ranges import RangeCheck

_MOVES = (BroadcastInDimOp, CastOp, ReshapeOp, SliceOp, TransposeOp)


@dataclass(frozen=True)
class _Use:
    """Numbers that an op reads, and those that it has a meaning for: `low` up to `high`, exclusive."""

    numbers: SSAValue
    low: int
    high: int
    op: CirhOp
    what: str


def watch_ranges(module: ModuleOp, input_names: Sequence[str]) -> tuple[RangeCheck, ...]:
    """Lets a step put out the range of its labels, and of ids of the batch that rows are looked up by.

    Args:
        module: a step as it was imported; gets two outputs for every check.
        input_names: what the user calls the batch inputs, in their order.

    Returns:
        The checks; numbers that are read several times in the same way are checked once.
    """
    function = graph_function(module)
    inputs = _inputs(function, input_names)
    uses: dict[tuple[SSAValue, int, int], _Use] = {}
    for op in function.body.block.ops:
        for use in _uses(op, inputs):
            uses.setdefault((use.numbers, use.low, use.high), use)
    watched = [use for use in uses.values() if element_count(tensor_of(use.numbers))]
    return tuple(_watch(function, number, use, inputs) for number, use in enumerate(watched))


def _inputs(function: FuncOp, names: Sequence[str]) -> dict[SSAValue, str]:
    arguments, _ = arguments_and_results(function)
    pairs = zip(function.args, arguments, strict=True)
    fed = [value for value, argument in pairs if argument.text(INPUT_NAME) is not None]
    return dict(zip(fed, names, strict=True))


def _uses(op: object, inputs: Mapping[SSAValue, str]) -> Iterator[_Use]:
    if isinstance(op, SparseSoftmaxCrossEntropyWithLogitsOp) and not op.ignore_out_of_range:
        yield _Use(op.labels, PADDING_LABEL, shape_of(op.logits)[-1], op, "the labels")
    # Ids that are computed may be meant to lie outside, of rows that are not used.
    if isinstance(op, GatherOp) and _origin(op.indices) in inputs:
        yield _Use(op.indices, 0, shape_of(op.x)[op.axis], op, "the rows")


def _origin(value: SSAValue) -> SSAValue:
    """Where elements come from that are only moved on the way."""
    while isinstance(value.owner, _MOVES):
        value = value.owner.operands[0]
    return value


def _named_source(numbers: SSAValue) -> SSAValue:
    """What a user calls these numbers: also where an importer has put a constant in place of some."""
    source = _origin(numbers)
    while isinstance(source.owner, SelectOp) and isinstance(_origin(source.owner.on_false).owner, ConstOp):
        source = _origin(source.owner.on_true)
    return source


def _watch(function: FuncOp, number: int, use: _Use, inputs: Mapping[SSAValue, str]) -> RangeCheck:
    names = [f"output_range/{number}/{end}" for end in ("min", "max")]
    for name, kind in zip(names, ("MIN", "MAX"), strict=True):
        extreme = ReduceOp(use.numbers, kind, range(len(shape_of(use.numbers))))
        _put_out(function, extreme.take_origin(use.op), name)
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


def _put_out(function: FuncOp, op: ReduceOp, name: str) -> None:
    """Adds an op and an output of the step that is its result."""
    returned = function.get_return_op()
    assert returned is not None
    attributes = function.res_attrs or [DictionaryAttr({}) for _ in returned.operands]
    Rewriter.insert_op(op, InsertPoint.before(returned))
    Rewriter.replace_op(returned, ReturnOp(*returned.operands, op.result))
    inputs, outputs = function.function_type.inputs, function.function_type.outputs
    function.function_type = FunctionType.from_attrs(inputs, ArrayAttr([*outputs, op.result.type]))
    function.res_attrs = ArrayAttr([*attributes, DictionaryAttr({OUTPUT_NAME: StringAttr(name)})])
