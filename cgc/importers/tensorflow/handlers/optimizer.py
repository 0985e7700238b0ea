"""Optimizer updates of whole variables, and of the rows that a batch uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.decompositions.indexing import take_padded
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter, dtype_of
from cgc.importers.tensorflow.node import Handle, Handler, NodeContext, PaddedRows, Table

Operands: TypeAlias = Mapping[str, SSAValue]
# A rule takes the operation and its inputs by name, variables by their values, and returns the new values of
# the variables, which are the first inputs, in their order. Dense and sparse training ops share the rules:
# the sparse ones apply them to the rows that occur in a batch. Source of the formulas:
# tensorflow/core/kernels/training_ops.cc.
Rule: TypeAlias = Callable[[NodeContext, Operands], tuple[SSAValue, ...]]


def gradient_descent(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """`var -= alpha * delta`."""
    return node.emit.emit_all(ops.GradientDescentOp(v["var"], v["alpha"], v["delta"]))


def momentum(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """Momentum, with or without Nesterov's look-ahead."""
    update = ops.MomentumOp(
        v["var"], v["accum"], v["lr"], v["grad"], v["momentum"], node.attr("use_nesterov")
    )
    return node.emit.emit_all(update)


def keras_momentum(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """`accum = momentum * accum - lr * grad`; `var += accum`.

    With Nesterov `var += momentum * accum - lr * grad`.
    """
    e = node.emit
    step = e.mul(v["grad"], v["lr"])
    accum = e.sub(e.mul(v["accum"], v["momentum"]), step)
    ahead = e.sub(e.mul(accum, v["momentum"]), step) if node.attr("use_nesterov") else accum
    return e.add(v["var"], ahead), accum


def adam(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """Adam, with or without Nesterov's look-ahead."""
    update = ops.AdamOp(
        v["var"],
        v["m"],
        v["v"],
        v["beta1_power"],
        v["beta2_power"],
        v["lr"],
        v["beta1"],
        v["beta2"],
        v["epsilon"],
        v["grad"],
        node.attr("use_nesterov"),
    )
    return node.emit.emit_all(update)


def adam_with_amsgrad(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """As Adam, divided by the root of the largest second moment so far, `vhat`."""
    e = node.emit
    one = e.scalar(1, dtype_of(v["lr"]))
    m = e.add(v["m"], e.mul(e.sub(v["grad"], v["m"]), e.sub(one, v["beta1"])))
    second = e.add(v["v"], e.mul(e.sub(e.mul(v["grad"], v["grad"]), v["v"]), e.sub(one, v["beta2"])))
    largest = e.binary(ops.MaxOp, v["vhat"], second)
    correction = e.unary(ops.SqrtOp, e.sub(one, v["beta2_power"]))
    alpha = e.div(e.mul(v["lr"], correction), e.sub(one, v["beta1_power"]))
    step = e.div(e.mul(m, alpha), e.add(e.unary(ops.SqrtOp, largest), v["epsilon"]))
    return e.sub(v["var"], step), m, second, largest


def ada_max(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """As Adam, with the decaying maximum `v` of the gradient's size instead of its second moment."""
    e = node.emit
    one = e.scalar(1, dtype_of(v["lr"]))
    m = e.add(v["m"], e.mul(e.sub(v["grad"], v["m"]), e.sub(one, v["beta1"])))
    largest = e.binary(ops.MaxOp, e.mul(v["v"], v["beta2"]), e.unary(ops.AbsOp, v["grad"]))
    alpha = e.div(v["lr"], e.sub(one, v["beta1_power"]))
    step = e.mul(alpha, e.div(m, e.add(largest, v["epsilon"])))
    return e.sub(v["var"], step), m, largest


def rms_prop(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """RMSProp, with a momentum."""
    update = ops.RMSPropOp(
        v["var"], v["ms"], v["mom"], v["lr"], v["rho"], v["momentum"], v["epsilon"], v["grad"]
    )
    return node.emit.emit_all(update)


def centered_rms_prop(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """As RMSProp, with the second moment around the running mean `mg` of the gradient."""
    e = node.emit
    rest = e.sub(e.scalar(1, dtype_of(v["rho"])), v["rho"])
    square = e.mul(v["grad"], v["grad"])
    ms = e.add(v["ms"], e.mul(e.sub(square, v["ms"]), rest))
    mg = e.add(v["mg"], e.mul(e.sub(v["grad"], v["mg"]), rest))
    variance = e.add(e.sub(ms, e.mul(mg, mg)), v["epsilon"])
    change = e.mul(e.mul(v["lr"], v["grad"]), e.unary(ops.RsqrtOp, variance))
    mom = e.add(e.mul(v["mom"], v["momentum"]), change)
    return e.sub(v["var"], mom), mg, ms, mom


def adagrad(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """Adagrad; without `update_slots` the accumulator does not change."""
    if node.attr("update_slots"):
        return node.emit.emit_all(ops.AdagradOp(v["var"], v["accum"], v["lr"], v["grad"]))
    e = node.emit
    change = e.mul(e.mul(v["grad"], v["lr"]), e.unary(ops.RsqrtOp, v["accum"]))
    return (e.sub(v["var"], change),)


def adagrad_v2(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """`accum += grad**2`; `var -= lr * grad / (sqrt(accum) + epsilon)`."""
    e = node.emit
    accum = v["accum"]
    if node.attr("update_slots"):
        accum = e.add(accum, e.mul(v["grad"], v["grad"]))
    scale = e.add(e.unary(ops.SqrtOp, accum), v["epsilon"])
    return e.sub(v["var"], e.div(e.mul(v["grad"], v["lr"]), scale)), accum


def adadelta(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """Adadelta: running means of squared gradients (`accum`) and steps (`accum_update`), with decay rho."""
    e = node.emit
    accum = _running_mean(e, v["accum"], v["rho"], v["grad"])
    root = e.unary(ops.SqrtOp, e.add(v["accum_update"], v["epsilon"]))
    scale = e.mul(root, e.unary(ops.RsqrtOp, e.add(accum, v["epsilon"])))
    step = e.mul(scale, v["grad"])
    accum_update = _running_mean(e, v["accum_update"], v["rho"], step)
    return e.sub(v["var"], e.mul(step, v["lr"])), accum, accum_update


def _running_mean(e: Emitter, mean: SSAValue, rho: SSAValue, x: SSAValue) -> SSAValue:
    """`rho * mean + (1 - rho) * x**2`."""
    rest = e.sub(e.scalar(1, dtype_of(rho)), rho)
    return e.add(e.mul(mean, rho), e.mul(e.mul(x, x), rest))


def proximal_gradient_descent(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """Return a step of gradient descent, then shrunk by l1 and l2."""
    gradient = v["delta"] if "delta" in v else v["grad"]
    moved = node.emit.sub(v["var"], node.emit.mul(gradient, v["alpha"]))
    return (_proximal(node.emit, moved, v["alpha"], v["l1"], v["l2"]),)


def proximal_adagrad(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """Return a step of Adagrad, then shrunk by l1 and l2 at the rate of each element."""
    e = node.emit
    accum = e.add(v["accum"], e.mul(v["grad"], v["grad"]))
    rate = e.mul(v["lr"], e.unary(ops.RsqrtOp, accum))
    moved = e.sub(v["var"], e.mul(v["grad"], rate))
    return _proximal(e, moved, rate, v["l1"], v["l2"]), accum


def _proximal(e: Emitter, x: SSAValue, rate: SSAValue, l1: SSAValue, l2: SSAValue) -> SSAValue:
    """`sign(x) * max(|x| - rate * l1, 0) / (1 + rate * l2)`."""
    return e.div(_shrunk(e, x, e.mul(rate, l1)), e.add(e.scalar(1, dtype_of(l2)), e.mul(rate, l2)))


def _shrunk(e: Emitter, x: SSAValue, amount: SSAValue) -> SSAValue:
    """Return x, nearer to zero by `amount`."""
    rest = e.binary(ops.MaxOp, e.sub(e.unary(ops.AbsOp, x), amount), e.like(0, x))
    return e.mul(e.unary(ops.SignOp, x), rest)


def adagrad_da(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """Dual averaging: `var = -lr * shrunk(sum of gradients) / (l2 * lr * step + sqrt(sum of squares))`."""
    e = node.emit
    total = e.add(v["gradient_accumulator"], v["grad"])
    squares = e.add(v["gradient_squared_accumulator"], e.mul(v["grad"], v["grad"]))
    step = e.cast(v["global_step"], dtype_of(v["lr"]))
    pull = e.mul(e.unary(ops.NegOp, v["lr"]), _shrunk(e, total, e.mul(v["l1"], step)))
    scale = e.add(e.mul(e.mul(v["l2"], step), v["lr"]), e.unary(ops.SqrtOp, squares))
    return e.div(pull, scale), total, squares


def ftrl(node: NodeContext, v: Operands) -> tuple[SSAValue, ...]:
    """Follow the regularized leader: `var` from the sums `accum` of squares and `linear` of gradients.

    With `multiply_linear_by_lr`, `linear` holds lr times as much.
    """
    e, lr, var = node.emit, v["lr"], v["var"]
    accum = e.add(v["accum"], e.mul(v["grad"], v["grad"]))
    gradient = v["grad"]
    if "l2_shrinkage" in v:
        gradient = e.add(gradient, e.mul(e.scale(v["l2_shrinkage"], 2), var))
    scale = _ftrl_power(node, accum, v["lr_power"])
    sigma = e.sub(scale, _ftrl_power(node, v["accum"], v["lr_power"]))
    l1, l2 = v["l1"], e.scale(v["l2"], 2)
    if node.attr("multiply_linear_by_lr"):
        gradient, l1, l2 = e.mul(gradient, lr), e.mul(l1, lr), e.mul(l2, lr)
    else:
        sigma, scale = e.div(sigma, lr), e.div(scale, lr)
    linear = e.add(v["linear"], e.sub(gradient, e.mul(sigma, var)))
    shrunk = _shrunk(e, linear, l1)
    return e.div(e.unary(ops.NegOp, shrunk), e.add(scale, l2)), accum, linear


def _ftrl_power(node: NodeContext, accum: SSAValue, lr_power: SSAValue) -> SSAValue:
    """`accum ** -lr_power`; the usual -1/2 is a root."""
    e = node.emit
    position = [argument.name for argument in node.op.op_def.input_arg].index("lr_power")
    known = node.known(position)
    if known is not None and known.item() == -0.5:
        return e.unary(ops.SqrtOp, accum)
    return e.binary(ops.PowOp, accum, e.unary(ops.NegOp, lr_power))


# Name of a training op without "ResourceApply" -> its rule.
RULES: dict[str, Rule] = {
    "GradientDescent": gradient_descent,
    "Momentum": momentum,
    "KerasMomentum": keras_momentum,
    "Adam": adam,
    "AdamWithAmsgrad": adam_with_amsgrad,
    "AdaMax": ada_max,
    "RMSProp": rms_prop,
    "CenteredRMSProp": centered_rms_prop,
    "Adagrad": adagrad,
    "AdagradV2": adagrad_v2,
    "Adadelta": adadelta,
    "AdagradDA": adagrad_da,
    "ProximalGradientDescent": proximal_gradient_descent,
    "ProximalAdagrad": proximal_adagrad,
    "Ftrl": ftrl,
    "FtrlV2": ftrl,
}

# For sparse gradients TensorFlow composes these of other operations.
_DENSE_ONLY = frozenset({"GradientDescent", "Adam", "AdamWithAmsgrad", "AdaMax"})


def _names(node: NodeContext) -> list[str]:
    return [argument.name for argument in node.op.op_def.input_arg]


def _write(node: NodeContext, values: tuple[SSAValue, ...]) -> None:
    """Write the variables, which are the first inputs of each training op."""
    for position, value in enumerate(values):
        node.write(position, value)


def _dense(rule: Rule) -> Handler:
    """Apply a rule to whole variables."""

    def handler(node: NodeContext) -> None:
        operands = {
            name: node.read(i) if isinstance(node.inputs[i], Handle) else node.x(i)
            for i, name in enumerate(_names(node))
        }
        _write(node, rule(node, operands))

    return handler


def _sparse(rule: Rule) -> Handler:
    """Take the rows of the variables that `indices` names, applies a rule to them, and puts them back.

    All other rows stay as they are, those of the optimizer's state as well.
    """

    def handler(node: NodeContext) -> None:
        e, names = node.emit, _names(node)
        indices = _distinct_indices(node, names)
        operands: dict[str, SSAValue] = {}
        for i, name in enumerate(names):
            if isinstance(node.inputs[i], Handle):
                operands[name] = take_padded(e, node.read(i), indices)
            elif name != "indices":
                operands[name] = node.rows(i)
        updated = rule(node, operands)
        _write(
            node,
            tuple(
                e.emit(ops.ScatterOp(node.read(i), indices, rows, "SET")) for i, rows in enumerate(updated)
            ),
        )

    return handler


def _distinct_indices(node: NodeContext, names: list[str]) -> SSAValue:
    """Return the indices, of which none may occur twice: each row is read once and written once."""
    position = names.index("indices")
    value, gradient = node.inputs[position], node.inputs[names.index("grad")]
    if isinstance(value, PaddedRows):
        distinct = value.value is value.unique
        distinct &= isinstance(gradient, PaddedRows) and gradient.unique is value.unique
    else:
        distinct = isinstance(value, np.ndarray) and len(np.unique(value)) == value.size
        distinct &= not isinstance(gradient, PaddedRows)
    if not distinct:
        raise RefusedError(
            Kind.USAGE,
            f"its indices ({node.op.inputs[position].name}) may refer to a row twice, or are not those of "
            "the gradient; sum the rows of equal index first, as tf.compat.v1 optimizers do, with tf.unique "
            "and tf.math.unsorted_segment_sum",
        )
    indices = node.rows(position)
    if len(shape_of(indices)) != 1:
        raise RefusedError(Kind.USAGE, f"its indices have shape {list(shape_of(indices))}, expected rank 1")
    return indices


SPARSE_TABLE: Table = {
    f"ResourceSparseApply{name}": _sparse(rule) for name, rule in RULES.items() if name not in _DENSE_ONLY
}
TABLE: Table = {**{f"ResourceApply{name}": _dense(rule) for name, rule in RULES.items()}, **SPARSE_TABLE}
