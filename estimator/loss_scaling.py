"""Loss scaling: gradients too small for float16 survive if the loss is multiplied before them."""

from __future__ import annotations

import logging
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from cgc.cirh.interface import RESOURCE_NAME, alias_of, arguments_and_results, graph_function
from cgc.cirh.ops import AddOp, ConstOp, SelectOp
from cgc.cirh.types import tensor_of
from cs_toolkit.step import GLOBAL_STEP
from estimator.errors import CallError

log = logging.getLogger("estimator")


def loss_scale_optimizer(
    optimizer: Any,
    loss_scale: float | str = "dynamic",
    *,
    initial_loss_scale: float = 2.0**15,
    increment_period: int = 2000,
    multiplier: float = 2.0,
) -> Any:
    """An optimizer that computes the gradients of the scaled loss, and divides them by the scale again.

    With a dynamic scale a step whose gradients are not all finite changes no weight and divides the scale;
    after a number of good steps the scale is multiplied. Scale and count are variables, so checkpoints have
    them. TensorFlow's own `MixedPrecisionLossScaleOptimizer` may be used in the same way.

    Args:
        optimizer: a `tf.compat.v1.train.Optimizer`.
        loss_scale: a number, or "dynamic".
        initial_loss_scale: first value of a dynamic scale.
        increment_period: good steps in a row until a dynamic scale grows.
        multiplier: factor by which it grows and shrinks.

    Raises:
        CallError: `loss_scale` is neither "dynamic" nor a number of at least 1.
    """
    import tensorflow as tf

    mixed = tf.compat.v1.mixed_precision
    if loss_scale == "dynamic":
        scale = mixed.DynamicLossScale(initial_loss_scale, increment_period, multiplier)
    elif isinstance(loss_scale, (int, float)) and not isinstance(loss_scale, bool) and loss_scale >= 1:
        scale = mixed.FixedLossScale(loss_scale)
    else:
        raise CallError(f"loss_scale must be 'dynamic' or a number >= 1, got {loss_scale!r}")
    return mixed.MixedPrecisionLossScaleOptimizer(optimizer, scale)


def count_skipped_steps(module: ModuleOp) -> None:
    """Lets the global step advance in every step, also in one whose update a dynamic loss scale skips.

    On the CS system the global step says which batch comes next, and a skipped step has used its batch up.
    TensorFlow leaves the global step alone there.
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
        op.set_debug_info(select.node_name, select.source)
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
