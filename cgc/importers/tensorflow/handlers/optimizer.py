"""Optimizer updates: of whole variables, and of the rows that a batch names."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.composed.rows import take_padded
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.handlers import optimizer_rules as rules
from cgc.importers.tensorflow.node import Handle, Handler, NodeContext, PaddedRows, Table

RULES: dict[str, rules.Rule] = {
    "GradientDescent": rules.gradient_descent,
    "Momentum": rules.momentum,
    "KerasMomentum": rules.keras_momentum,
    "Adam": rules.adam,
    "AdamWithAmsgrad": rules.adam_with_amsgrad,
    "AdaMax": rules.ada_max,
    "RMSProp": rules.rms_prop,
    "CenteredRMSProp": rules.centered_rms_prop,
    "Adagrad": rules.adagrad,
    "AdagradV2": rules.adagrad_v2,
    "Adadelta": rules.adadelta,
    "AdagradDA": rules.adagrad_da,
    "ProximalGradientDescent": rules.proximal_gradient_descent,
    "ProximalAdagrad": rules.proximal_adagrad,
    "Ftrl": rules.ftrl,
    "FtrlV2": rules.ftrl,
}
"""What follows "ResourceApply" in the names of training ops -> what they compute."""

_DENSE_ONLY = frozenset({"GradientDescent", "Adam", "AdamWithAmsgrad", "AdaMax"})
"""For sparse gradients TensorFlow composes these of other operations."""


def _names(node: NodeContext) -> list[str]:
    return [argument.name for argument in node.op.op_def.input_arg]


def _write(node: NodeContext, values: tuple[SSAValue, ...]) -> None:
    """Writes the variables, which are the first inputs of each training op."""
    for position, value in enumerate(values):
        node.write(position, value)


def _dense(rule: rules.Rule) -> Handler:
    """Applies a rule to whole variables."""

    def handler(node: NodeContext) -> None:
        operands = {
            name: node.read(i) if isinstance(node.inputs[i], Handle) else node.x(i)
            for i, name in enumerate(_names(node))
        }
        _write(node, rule(node, operands))

    return handler


def _sparse(rule: rules.Rule) -> Handler:
    """Takes the rows of the variables that `indices` names, applies a rule to them, and puts them back.

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
    """The indices, of which none may occur twice: each row is read once and written once."""
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
            f"its indices ({node.op.inputs[position].name}) may name a row twice, or are not those of the "
            "gradient; sum the rows of equal index first, as tf.compat.v1 optimizers do, with tf.unique and "
            "tf.math.unsorted_segment_sum",
        )
    indices = node.rows(position)
    if len(shape_of(indices)) != 1:
        raise RefusedError(Kind.USAGE, f"its indices have shape {list(shape_of(indices))}, expected rank 1")
    return indices


SPARSE_TABLE: Table = {
    f"ResourceSparseApply{name}": _sparse(rule) for name, rule in RULES.items() if name not in _DENSE_ONLY
}
TABLE: Table = {**{f"ResourceApply{name}": _dense(rule) for name, rule in RULES.items()}, **SPARSE_TABLE}
