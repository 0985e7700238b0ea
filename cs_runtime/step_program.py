"""Turns an imported step into the program of a run.

The CS system needs more than the user's outputs: the range of labels and ids in every batch, and a global
step that counts every batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from cgc.cirh.base import CirhOp
from cgc.cirh.interface import (
    INPUT_NAME,
    OUTPUT_NAME,
    RESOURCE_NAME,
    alias_of,
    arguments_and_results,
    graph_function,
    step_interface,
)
from cgc.cirh.ops import (
    AddOp,
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
from cs_runtime.program import RangeCheck, StepCheck, StepProgram
from cs_toolkit.step import GLOBAL_STEP, Mode

log = logging.getLogger("cs_runtime")

_MOVES = (BroadcastInDimOp, CastOp, ReshapeOp, SliceOp, TransposeOp)


def step_program(
    module: ModuleOp,
    mode: Mode,
    batch_size: int,
    input_names: Sequence[str],
    model: str = "",
    checks: Sequence[StepCheck] = (),
) -> StepProgram:
    """Make the program of a run from an imported step.

    Args:
        module: The step, which is changed: it gets outputs for the ranges of its labels and ids, and a global
            step that counts every batch.
        mode: The mode of the step.
        batch_size: Samples in one batch.
        input_names: The user's names of the batch inputs, in order.
        model: The user's name of the model.
        checks: Conditions of the program that must hold in every step.

    Raises:
        cgc.errors.InvalidModuleError: The module is not a step.
    """
    if mode == "train":
        count_skipped_steps(module)
    ranges = add_range_checks(module, input_names)
    return StepProgram(module, step_interface(module), mode, batch_size, (*checks, *ranges), model)


def count_skipped_steps(module: ModuleOp) -> None:
    """Increment the global step in every step, even if dynamic loss scaling skips the update."""
    # Frameworks do not count such a step. On the CS system the global step selects the next batch, and the
    # skipped step has consumed its batch.
    function = graph_function(module)
    step = _global_step(function)
    returned = function.get_return_op()
    if step is None or returned is None:
        return
    argument, index = step
    select = returned.operands[index].owner
    if not isinstance(select, SelectOp) or argument not in (select.on_true, select.on_false):
        return
    one = ConstOp.splat(1, tensor_of(argument))
    advanced = AddOp(argument, one)
    for op in (one, advanced):
        op.take_origin(select)
        Rewriter.insert_op(op, InsertPoint.before(returned))
    returned.operands[index] = advanced.result
    log.info("the global step counts every batch, including those whose update loss scaling skips")


def _global_step(function: FuncOp) -> tuple[SSAValue, int] | None:
    """Return the argument that holds the global step, and the index of the result that replaces it."""
    arguments, _ = arguments_and_results(function)
    for value, argument in zip(function.args, arguments, strict=True):
        index = alias_of(argument)
        if argument.text(RESOURCE_NAME) == GLOBAL_STEP and index is not None:
            return value, index
    return None


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
    arguments, _ = arguments_and_results(function)
    pairs = zip(function.args, arguments, strict=True)
    fed: list[SSAValue] = [value for value, argument in pairs if argument.text(INPUT_NAME) is not None]
    inputs = dict(zip(fed, input_names, strict=True))
    uses: dict[tuple[SSAValue, int, int], _Use] = {}
    for op in function.body.block.ops:
        for use in _find_uses(op, inputs):
            uses.setdefault((use.numbers, use.low, use.high), use)
    checked = [use for use in uses.values() if element_count(tensor_of(use.numbers))]
    return tuple(_add_check(function, number, use, inputs) for number, use in enumerate(checked))


def _find_uses(op: object, inputs: Mapping[SSAValue, str]) -> Iterator[_Use]:
    if isinstance(op, SparseSoftmaxCrossEntropyWithLogitsOp) and not op.ignore_out_of_range:
        yield _Use(op.labels, PADDING_LABEL, shape_of(op.logits)[-1], op, "the labels")
    # Computed ids may be out of range on purpose, for rows whose result is not used.
    if isinstance(op, GatherOp) and _origin(op.indices) in inputs:
        yield _Use(op.indices, 0, shape_of(op.x)[op.axis], op, "the rows")


def _origin(value: SSAValue) -> SSAValue:
    """Return the value that a chain of moves, such as reshapes and casts, starts from."""
    while isinstance(value.owner, _MOVES):
        value = value.owner.operands[0]
    return value


def _add_check(function: FuncOp, number: int, use: _Use, inputs: Mapping[SSAValue, str]) -> RangeCheck:
    names = [f"output_range/{number}/{end}" for end in ("min", "max")]
    for name, kind in zip(names, ("MIN", "MAX"), strict=True):
        extreme = ReduceOp(use.numbers, kind, range(len(shape_of(use.numbers))))
        _add_output(function, extreme.take_origin(use.op), name)
    source = _origin(use.numbers)
    # An importer may have replaced some elements of the value with the user's name by a constant.
    while isinstance(source.owner, SelectOp) and isinstance(_origin(source.owner.on_false).owner, ConstOp):
        source = _origin(source.owner.on_true)
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
