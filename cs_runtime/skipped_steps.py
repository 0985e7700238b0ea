"""The global step under dynamic loss scaling: on the CS system it counts batches."""

from __future__ import annotations

import logging

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from cgc.cirh.interface import RESOURCE_NAME, alias_of, arguments_and_results, graph_function
from cgc.cirh.ops import AddOp, ConstOp, SelectOp
from cgc.cirh.types import tensor_of
from cs_toolkit.step import GLOBAL_STEP

log = logging.getLogger("cs_runtime")


def count_skipped_steps(module: ModuleOp) -> None:
    """Lets the global step advance in every step, also in one whose update a dynamic loss scale skips.

    On the CS system the global step says which batch comes next, and a skipped step has used its batch up.
    Frameworks do not count it.
    """
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
    log.info("the global step counts every batch, also one whose update the loss scaling skips")


def _global_step(function: FuncOp) -> tuple[SSAValue, int] | None:
    """The argument of the global step, and the result that replaces it."""
    arguments, _ = arguments_and_results(function)
    for value, argument in zip(function.args, arguments, strict=True):
        index = alias_of(argument)
        if argument.text(RESOURCE_NAME) == GLOBAL_STEP and index is not None:
            return value, index
    return None
