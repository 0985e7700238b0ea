"""Optimizer updates. Hyperparameters are rank-0 operands of param's dtype.

What frameworks compute differently is an attribute; without it the arithmetic is TensorFlow's.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def

from cgc.cirh.base import BOOLEAN, FALSE, BoolParameter, CirhOp, Value, bool_attr, operand_type
from cgc.cirh.traits import OpTraits, Work, pointwise
from cgc.cirh.types import FLOATS, Tensor, tensor_of


class OptimizerOp(CirhOp):
    """Base of updates. The results are the new values of the first `len(results)` operands, in their order.

    TENSORS names the operands of the type of param; all others have rank 0.
    """

    TENSORS: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def infer(cls, result_count: int, **operands: Tensor) -> tuple[Tensor, ...]:
        """Result types: `result_count` times the type of param."""
        param = operands["param"]
        cls.require_dtype("param", param, FLOATS)
        for name, tensor in operands.items():
            if name in cls.TENSORS:
                cls.require_same(name, tensor, "param", param)
            else:
                cls.require_scalar(name, tensor, param)
        return (param,) * result_count

    def _infer_results(self) -> tuple[Tensor, ...]:
        types = (tensor_of(value) for value in self.operands)
        count = len(self.get_irdl_definition().results)
        names = [name for name, _ in self.get_irdl_definition().operands]
        return self.infer(count, **dict(zip(names, types, strict=True)))


def _types(**operands: Value) -> dict[str, Tensor]:
    return {name: operand_type(value) for name, value in operands.items()}


@irdl_op_definition
class GradientDescentOp(OptimizerOp):
    """`param - lr * grad`."""

    name = "cirh.GradientDescent"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(simple=2))
    TENSORS: ClassVar[frozenset[str]] = frozenset({"param", "grad"})
    param = operand_def()
    lr = operand_def()
    grad = operand_def()
    new_param = result_def()

    def __init__(self, param: Value, lr: Value, grad: Value) -> None:
        super().__init__([param, lr, grad], self.infer(1, **_types(param=param, lr=lr, grad=grad)))


@irdl_op_definition
class MomentumOp(OptimizerOp):
    """`accum' = momentum * accum + grad`; `param' = param - lr * accum'`.

    With `use_nesterov`: `param' = param - lr * (grad + momentum * accum')`.
    """

    name = "cirh.Momentum"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(simple=4))
    TENSORS: ClassVar[frozenset[str]] = frozenset({"param", "accum", "grad"})
    param = operand_def()
    accum = operand_def()
    lr = operand_def()
    grad = operand_def()
    momentum = operand_def()
    new_param = result_def()
    new_accum = result_def()
    use_nesterov_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="use_nesterov")
    use_nesterov = BoolParameter("use_nesterov")

    def __init__(
        self, param: Value, accum: Value, lr: Value, grad: Value, momentum: Value, use_nesterov: bool = False
    ) -> None:
        types = _types(param=param, accum=accum, lr=lr, grad=grad, momentum=momentum)
        super().__init__(
            [param, accum, lr, grad, momentum],
            self.infer(2, **types),
            {"use_nesterov": bool_attr(use_nesterov)},
        )


class AdamBaseOp(OptimizerOp):
    """Base of `Adam` and `AdamW`. Their operands stand in each: IRDL puts those of a base last."""

    TENSORS: ClassVar[frozenset[str]] = frozenset({"param", "m", "v", "grad"})
    new_param = result_def()
    new_m = result_def()
    new_v = result_def()
    use_nesterov_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="use_nesterov")
    use_nesterov = BoolParameter("use_nesterov")
    corrected_attr = opt_prop_def(UnitAttr, prop_name="corrected_epsilon")

    @property
    def corrected_epsilon(self) -> bool:
        """True if epsilon is added to the root of the corrected v, as in the paper and in PyTorch."""
        return self.corrected_attr is not None

    def _build(self, use_nesterov: bool, corrected_epsilon: bool, **operands: Value) -> None:
        types = self.infer(3, **_types(**operands))
        properties: dict[str, Attribute] = {"use_nesterov": bool_attr(use_nesterov)}
        if corrected_epsilon:
            properties["corrected_epsilon"] = UnitAttr()
        CirhOp.__init__(self, list(operands.values()), types, properties)


@irdl_op_definition
class AdamOp(AdamBaseOp):
    """Adam as `ResourceApplyAdam` computes it, with `corrected_epsilon` as `torch.optim.Adam` does.

    `alpha = lr * sqrt(1 - beta2_power) / (1 - beta1_power)`; `m' = m + (grad - m) * (1 - beta1)`;
    `v' = v + (grad**2 - v) * (1 - beta2)`; `param' = param - alpha * m' / (sqrt(v') + epsilon)`.
    With `use_nesterov` the numerator is `m' * beta1 + (1 - beta1) * grad`.

    That epsilon is the paper's "epsilon hat". With `corrected_epsilon` it is that of Algorithm 1 (Kingma and
    Ba 2015): `param' = param - lr / (1 - beta1_power) * m' / (sqrt(v' / (1 - beta2_power)) + epsilon)`.
    """

    name = "cirh.Adam"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(divide=2, simple=12))
    param = operand_def()
    m = operand_def()
    v = operand_def()
    beta1_power = operand_def()
    beta2_power = operand_def()
    lr = operand_def()
    beta1 = operand_def()
    beta2 = operand_def()
    epsilon = operand_def()
    grad = operand_def()

    def __init__(
        self,
        param: Value,
        m: Value,
        v: Value,
        beta1_power: Value,
        beta2_power: Value,
        lr: Value,
        beta1: Value,
        beta2: Value,
        epsilon: Value,
        grad: Value,
        use_nesterov: bool = False,
        corrected_epsilon: bool = False,
    ) -> None:
        self._build(
            use_nesterov,
            corrected_epsilon,
            param=param,
            m=m,
            v=v,
            beta1_power=beta1_power,
            beta2_power=beta2_power,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            grad=grad,
        )


@irdl_op_definition
class AdamWOp(AdamBaseOp):
    """`Adam` with decoupled decay: param' is that of `Adam` less `lr * weight_decay * param`.

    Zeros for both powers leave out the correction of the bias, as the optimizer of BERT does.
    """

    name = "cirh.AdamW"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(divide=2, simple=14))
    param = operand_def()
    m = operand_def()
    v = operand_def()
    beta1_power = operand_def()
    beta2_power = operand_def()
    lr = operand_def()
    beta1 = operand_def()
    beta2 = operand_def()
    epsilon = operand_def()
    grad = operand_def()
    weight_decay = operand_def()

    def __init__(
        self,
        param: Value,
        m: Value,
        v: Value,
        beta1_power: Value,
        beta2_power: Value,
        lr: Value,
        beta1: Value,
        beta2: Value,
        epsilon: Value,
        grad: Value,
        weight_decay: Value,
        use_nesterov: bool = False,
        corrected_epsilon: bool = False,
    ) -> None:
        self._build(
            use_nesterov,
            corrected_epsilon,
            param=param,
            m=m,
            v=v,
            beta1_power=beta1_power,
            beta2_power=beta2_power,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            grad=grad,
            weight_decay=weight_decay,
        )


@irdl_op_definition
class RMSPropOp(OptimizerOp):
    """RMSProp as `ResourceApplyRMSProp` computes it.

    `ms' = ms + (grad**2 - ms) * (1 - rho)`; `mom' = momentum * mom + lr * grad / sqrt(ms' + epsilon)`;
    `param' = param - mom'`.
    """

    name = "cirh.RMSProp"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(divide=2, simple=8))
    TENSORS: ClassVar[frozenset[str]] = frozenset({"param", "ms", "mom", "grad"})
    param = operand_def()
    ms = operand_def()
    mom = operand_def()
    lr = operand_def()
    rho = operand_def()
    momentum = operand_def()
    epsilon = operand_def()
    grad = operand_def()
    new_param = result_def()
    new_ms = result_def()
    new_mom = result_def()

    def __init__(
        self,
        param: Value,
        ms: Value,
        mom: Value,
        lr: Value,
        rho: Value,
        momentum: Value,
        epsilon: Value,
        grad: Value,
    ) -> None:
        types = _types(
            param=param, ms=ms, mom=mom, lr=lr, rho=rho, momentum=momentum, epsilon=epsilon, grad=grad
        )
        super().__init__([param, ms, mom, lr, rho, momentum, epsilon, grad], self.infer(3, **types))


@irdl_op_definition
class AdagradOp(OptimizerOp):
    """`accum' = accum + grad**2`; `param' = param - lr * grad / sqrt(accum')`."""

    name = "cirh.Adagrad"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(divide=2, simple=4))
    TENSORS: ClassVar[frozenset[str]] = frozenset({"param", "accum", "grad"})
    param = operand_def()
    accum = operand_def()
    lr = operand_def()
    grad = operand_def()
    new_param = result_def()
    new_accum = result_def()

    def __init__(self, param: Value, accum: Value, lr: Value, grad: Value) -> None:
        types = _types(param=param, accum=accum, lr=lr, grad=grad)
        super().__init__([param, accum, lr, grad], self.infer(2, **types))
