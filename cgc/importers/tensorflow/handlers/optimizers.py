"""Optimizer updates, with the arithmetic of TensorFlow's training ops."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.tensorflow.node import NodeContext, Table


def _operands(node: NodeContext) -> dict[str, SSAValue]:
    """Inputs by name; variables by their current values."""
    names = [argument.name for argument in node.op.op_def.input_arg]
    resource = [argument.name for argument in node.op.op_def.input_arg if argument.type == _DT_RESOURCE]
    return {
        name: node.read(position) if name in resource else node.x(position)
        for position, name in enumerate(names)
    }


_DT_RESOURCE = 20
"""tensorflow.DataType.DT_RESOURCE."""


def _write(node: NodeContext, *values: SSAValue) -> None:
    """Writes the variables, which are the first inputs of each training op."""
    for position, value in enumerate(values):
        node.write(position, value)


def _gradient_descent(node: NodeContext) -> None:
    v = _operands(node)
    _write(node, node.emit.emit(ops.GradientDescentOp(v["var"], v["alpha"], v["delta"])))


def _momentum(node: NodeContext) -> None:
    v = _operands(node)
    update = ops.MomentumOp(
        v["var"], v["accum"], v["lr"], v["grad"], v["momentum"], node.attr("use_nesterov")
    )
    _write(node, *node.emit.emit_all(update))


def _keras_momentum(node: NodeContext) -> None:
    """`accum = momentum * accum - lr * grad`; `var += accum`.

    With Nesterov `var += momentum * accum - lr * grad`.
    """
    e, v = node.emit, _operands(node)
    step = e.mul(v["grad"], v["lr"])
    accum = e.sub(e.mul(v["accum"], v["momentum"]), step)
    ahead = e.sub(e.mul(accum, v["momentum"]), step) if node.attr("use_nesterov") else accum
    _write(node, e.add(v["var"], ahead), accum)


def _adam(node: NodeContext) -> None:
    v = _operands(node)
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
    _write(node, *node.emit.emit_all(update))


def _rms_prop(node: NodeContext) -> None:
    v = _operands(node)
    update = ops.RMSPropOp(
        v["var"], v["ms"], v["mom"], v["lr"], v["rho"], v["momentum"], v["epsilon"], v["grad"]
    )
    _write(node, *node.emit.emit_all(update))


def _centered_rms_prop(node: NodeContext) -> None:
    """As RMSProp, with the second moment around the running mean `mg` of the gradient."""
    e, v = node.emit, _operands(node)
    rest = e.sub(e.scalar(1, node.op.inputs[4].dtype.name), v["rho"])
    square = e.mul(v["grad"], v["grad"])
    ms = e.add(v["ms"], e.mul(e.sub(square, v["ms"]), rest))
    mg = e.add(v["mg"], e.mul(e.sub(v["grad"], v["mg"]), rest))
    variance = e.add(e.sub(ms, e.mul(mg, mg)), v["epsilon"])
    change = e.mul(e.mul(v["lr"], v["grad"]), e.unary(ops.RsqrtOp, variance))
    mom = e.add(e.mul(v["mom"], v["momentum"]), change)
    # Inputs: var, mg, ms, mom.
    _write(node, e.sub(v["var"], mom), mg, ms, mom)


def _adagrad(node: NodeContext) -> None:
    v = _operands(node)
    if node.attr("update_slots"):
        _write(node, *node.emit.emit_all(ops.AdagradOp(v["var"], v["accum"], v["lr"], v["grad"])))
        return
    e = node.emit
    change = e.mul(e.mul(v["grad"], v["lr"]), e.unary(ops.RsqrtOp, v["accum"]))
    _write(node, e.sub(v["var"], change))


def _adagrad_v2(node: NodeContext) -> None:
    """`accum += grad**2`; `var -= lr * grad / (sqrt(accum) + epsilon)`."""
    e, v = node.emit, _operands(node)
    accum = v["accum"]
    if node.attr("update_slots"):
        accum = e.add(accum, e.mul(v["grad"], v["grad"]))
    scale = e.add(e.unary(ops.SqrtOp, accum), v["epsilon"])
    _write(node, e.sub(v["var"], e.div(e.mul(v["grad"], v["lr"]), scale)), accum)


TABLE: Table = {
    "ResourceApplyGradientDescent": _gradient_descent,
    "ResourceApplyMomentum": _momentum,
    "ResourceApplyKerasMomentum": _keras_momentum,
    "ResourceApplyAdam": _adam,
    "ResourceApplyRMSProp": _rms_prop,
    "ResourceApplyCenteredRMSProp": _centered_rms_prop,
    "ResourceApplyAdagrad": _adagrad,
    "ResourceApplyAdagradV2": _adagrad_v2,
}
