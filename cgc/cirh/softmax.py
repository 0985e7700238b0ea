"""Softmax, the cross entropies, and attention as single ops, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, var_operand_def

from cgc.cirh.base import (
    BOOLEAN,
    FALSE,
    FLOAT,
    INT,
    BoolParameter,
    CirhOp,
    FloatParameter,
    IntParameter,
    Value,
    bool_attr,
    float_attr,
    int_attr,
    operand_type,
)
from cgc.cirh.traits import Fp16, OpTraits, Work, mixes
from cgc.cirh.types import FLOATS, INTEGERS, Tensor, tensor_of, tensor_type

# The class number of positions that are padding; sequences of variable length are filled up with it.
PADDING_LABEL = -1


class AxisOp(CirhOp):
    """Base of `Op(x) {axis} -> result` of the type of x."""

    x = operand_def()
    result = result_def()
    axis_attr = prop_def(INT, prop_name="axis")
    axis = IntParameter("axis")

    def __init__(self, x: Value, axis: int = -1) -> None:
        source = operand_type(x)
        axis = axis + len(source.get_shape()) if axis < 0 else axis
        super().__init__([x], [self.infer(source, axis)], {"axis": int_attr(axis)})

    @classmethod
    def infer(cls, x: Tensor, axis: int) -> Tensor:
        """Result type: the type of x."""
        cls.require_dtype("x", x, FLOATS)
        cls.require_axis(axis, len(x.get_shape()))
        return x

    def row_reductions(self) -> int:
        """Return 2: the largest element and the sum of the exponentials."""
        return 2

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.axis),)


@irdl_op_definition
class SoftmaxOp(AxisOp):
    """`exp(x) / sum(exp(x))` along `axis`."""

    name = "cirh.Softmax"
    TRAITS: ClassVar[OpTraits] = mixes(Work(transcendental=1, simple=4), fp16=Fp16.FOLLOWS)


@irdl_op_definition
class LogSoftmaxOp(AxisOp):
    """`x - log(sum(exp(x)))` along `axis`."""

    name = "cirh.LogSoftmax"
    TRAITS: ClassVar[OpTraits] = mixes(Work(transcendental=1, simple=4))


@irdl_op_definition
class SoftmaxGradOp(CirhOp):
    """Gradient of `Softmax` from its result: `(grad - sum(grad * probabilities)) * probabilities`."""

    name = "cirh.SoftmaxGrad"
    TRAITS: ClassVar[OpTraits] = mixes(fp16=Fp16.FOLLOWS, gradient_of=SoftmaxOp)
    probabilities = operand_def()
    grad = operand_def()
    result = result_def()
    axis_attr = prop_def(INT, prop_name="axis")
    axis = IntParameter("axis")

    def __init__(self, probabilities: Value, grad: Value, axis: int = -1) -> None:
        source = operand_type(probabilities)
        axis = axis + len(source.get_shape()) if axis < 0 else axis
        result = self.infer(source, operand_type(grad), axis)
        super().__init__([probabilities, grad], [result], {"axis": int_attr(axis)})

    @classmethod
    def infer(cls, probabilities: Tensor, grad: Tensor, axis: int) -> Tensor:
        """Result type: the type of both operands."""
        cls.require_dtype("probabilities", probabilities, FLOATS)
        cls.require_same("grad", grad, "probabilities", probabilities)
        cls.require_axis(axis, len(probabilities.get_shape()))
        return probabilities

    def row_reductions(self) -> int:
        """Return 1: the sum of the products."""
        return 1

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.probabilities), tensor_of(self.grad), self.axis),)


class CrossEntropyOp(CirhOp):
    """Base of the ops that give a loss for each row of logits, and its gradient by the logits."""

    def row_reductions(self) -> int:
        """Return 2: the largest element and the sum of the exponentials."""
        return 2


@irdl_op_definition
class SparseSoftmaxCrossEntropyWithLogitsOp(CrossEntropyOp):
    """Cross entropy of logits `[..., C]` and class numbers `[...]`, and its gradient by the logits.

    Results: loss `[...]`, backprop `softmax(logits) - onehot(labels)` `[..., C]`. A row whose label is
    `PADDING_LABEL` does not count: 0 in both. Any other label out of range gives NaN in both, or with
    `ignore_out_of_range` 0 in both.
    """

    name = "cirh.SparseSoftmaxCrossEntropyWithLogits"
    TRAITS: ClassVar[OpTraits] = mixes(Work(transcendental=1, simple=6))
    logits = operand_def()
    labels = operand_def()
    loss = result_def()
    backprop = result_def()
    axis_attr = prop_def(INT, prop_name="axis")
    ignore_attr = opt_prop_def(UnitAttr, prop_name="ignore_out_of_range")
    axis = IntParameter("axis")

    def __init__(self, logits: Value, labels: Value, ignore_out_of_range: bool = False) -> None:
        source = operand_type(logits)
        axis = len(source.get_shape()) - 1
        properties: dict[str, Attribute] = {"axis": int_attr(axis)}
        if ignore_out_of_range:
            properties["ignore_out_of_range"] = UnitAttr()
        super().__init__([logits, labels], self.infer(source, operand_type(labels), axis), properties)

    @property
    def ignore_out_of_range(self) -> bool:
        """True if rows with any label out of range do not count."""
        return self.ignore_attr is not None

    @classmethod
    def infer(cls, logits: Tensor, labels: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Result types: loss of the shape of labels, backprop of the type of logits."""
        cls.require_dtype("logits", logits, FLOATS)
        cls.require_dtype("labels", labels, INTEGERS)
        shape = logits.get_shape()
        if not shape or labels.get_shape() != shape[:-1]:
            cls.fail(f"logits has type {logits} and labels {labels}, expected [..., C] and [...]")
        if axis != len(shape) - 1:
            cls.fail(f"axis is {axis}, expected {len(shape) - 1}, the last dimension of {logits}")
        return tensor_type(shape[:-1], logits.element_type), logits

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.logits), tensor_of(self.labels), self.axis)


@irdl_op_definition
class SoftmaxCrossEntropyWithLogitsOp(CrossEntropyOp):
    """Cross entropy of logits and class probabilities, both `[..., C]`, and its gradient by the logits.

    Results: loss `[...]`, backprop `softmax(logits) - labels` `[..., C]`.
    """

    name = "cirh.SoftmaxCrossEntropyWithLogits"
    TRAITS: ClassVar[OpTraits] = mixes(Work(transcendental=1, simple=6))
    logits = operand_def()
    labels = operand_def()
    loss = result_def()
    backprop = result_def()

    def __init__(self, logits: Value, labels: Value) -> None:
        super().__init__([logits, labels], self.infer(operand_type(logits), operand_type(labels)))

    @classmethod
    def infer(cls, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Result types: loss without the last dimension, backprop of the type of logits."""
        cls.require_dtype("logits", logits, FLOATS)
        cls.require_same("labels", labels, "logits", logits)
        if not logits.get_shape():
            cls.fail(f"logits has type {logits}, expected rank 1 or more")
        return tensor_type(logits.get_shape()[:-1], logits.element_type), logits

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.logits), tensor_of(self.labels))


@irdl_op_definition
class CtcLossOp(CirhOp):
    """Connectionist temporal classification: the loss of sequences of labels, and its gradient.

    log_probs is `[N, T, C]` and targets `[N, S]`, of which the first `target_lengths` labels count, and the
    first `input_lengths` steps. Results: loss `[N]`, infinite where no alignment fits, and backprop
    `[N, T, C]`, the gradient by the logits whose log softmax log_probs is; NaN where the loss is infinite.
    """

    name = "cirh.CtcLoss"
    TRAITS: ClassVar[OpTraits] = mixes(Work(transcendental=4, simple=12))
    log_probs = operand_def()
    targets = operand_def()
    input_lengths = operand_def()
    target_lengths = operand_def()
    loss = result_def()
    backprop = result_def()
    blank_attr = prop_def(INT, prop_name="blank")
    blank = IntParameter("blank")

    def __init__(
        self, log_probs: Value, targets: Value, input_lengths: Value, target_lengths: Value, blank: int = 0
    ) -> None:
        operands = (log_probs, targets, input_lengths, target_lengths)
        types = self.infer(blank, *map(operand_type, operands))
        super().__init__(operands, types, {"blank": int_attr(blank)})

    @classmethod
    def infer(
        cls, blank: int, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Result types: loss `[N]`, backprop of the type of log_probs."""
        cls.require_dtype("log_probs", log_probs, frozenset({"float32"}))
        cls.require_dtype("targets", targets, INTEGERS)
        shape = log_probs.get_shape()
        if len(shape) != 3 or 0 in shape[1:] or not 0 <= blank < shape[2]:
            cls.fail(
                f"blank is {blank} and log_probs has type {log_probs}, expected [N, T, C], 0 <= blank < C"
            )
        if len(targets.get_shape()) != 2 or targets.get_shape()[0] != shape[0]:
            cls.fail(f"targets has type {targets}, expected [{shape[0]}, S]")
        for what, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
            cls.require_dtype(what, lengths, INTEGERS)
            if lengths.get_shape() != shape[:1]:
                cls.fail(f"{what} has type {lengths}, expected [{shape[0]}]")
        return tensor_type(shape[:1], "float32"), log_probs

    def row_reductions(self) -> int:
        """Return 2: the sums over all alignments, forwards and backwards."""
        return 2

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(self.blank, *map(tensor_of, self.operands))


def _scores_type(op: type[CirhOp], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the type of `query key^T`, `[..., L, S]`; checks the three against each other."""
    op.require_dtype("query", query, FLOATS)
    q, k, v = (tensor.get_shape() for tensor in (query, key, value))
    fits = len(q) == len(k) == len(v) >= 3 and q[:-2] == k[:-2] == v[:-2] and q[-1] == k[-1]
    if not fits or k[-2] != v[-2] or len({t.element_type for t in (query, key, value)}) > 1:
        op.fail(
            f"query has type {query}, key {key} and value {value}, "
            "expected [..., L, D], [..., S, D] and [..., S, E] of rank 3 or more and one element type"
        )
    return tensor_type([*q[:-1], k[-2]], query.element_type)


@irdl_op_definition
class AttentionOp(CirhOp):
    """`softmax(query key^T * scale + bias)`, times keep, times value.

    query `[..., L, D]`, key `[..., S, D]`, value `[..., S, E]`. The optional operands: bias of the rank of
    the scores `[..., L, S]`, every size its own or 1; keep, what dropout multiplies the probabilities with,
    of the type of the scores. Results: context `[..., L, E]`; probabilities `[..., L, S]`, before keep.
    Products are summed and the softmax is computed in float32.
    """

    name = "cirh.Attention"
    TRAITS: ClassVar[OpTraits] = mixes(fp16=Fp16.STARTS, ends_update=True)
    query = operand_def()
    key = operand_def()
    value = operand_def()
    optional = var_operand_def()
    context = result_def()
    probabilities = result_def()
    scale_attr = prop_def(FLOAT, prop_name="scale")
    has_bias_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="has_bias")
    has_keep_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="has_keep")
    scale = FloatParameter("scale")
    has_bias = BoolParameter("has_bias")
    has_keep = BoolParameter("has_keep")

    def __init__(
        self,
        query: Value,
        key: Value,
        value: Value,
        bias: Value | None = None,
        keep: Value | None = None,
        scale: float = 1.0,
    ) -> None:
        results = self.infer(
            operand_type(query),
            operand_type(key),
            operand_type(value),
            None if bias is None else operand_type(bias),
            None if keep is None else operand_type(keep),
        )
        super().__init__(
            [query, key, value, *(operand for operand in (bias, keep) if operand is not None)],
            results,
            {
                "scale": float_attr(scale),
                "has_bias": bool_attr(bias is not None),
                "has_keep": bool_attr(keep is not None),
            },
        )

    @property
    def bias(self) -> SSAValue | None:
        """The operand that is added to the scores."""
        return self.operands[3] if self.has_bias else None

    @property
    def keep(self) -> SSAValue | None:
        """The operand that multiplies the probabilities."""
        return self.operands[3 + self.has_bias] if self.has_keep else None

    @classmethod
    def infer(
        cls, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, keep: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Result types: `[..., L, E]` and `[..., L, S]`."""
        scores = _scores_type(cls, query, key, value)
        shape = scores.get_shape()
        if bias is not None:
            sizes = bias.get_shape()
            fits = len(sizes) == len(shape) and all(a in (1, b) for a, b in zip(sizes, shape, strict=True))
            if not fits or bias.element_type != scores.element_type:
                cls.fail(f"bias has type {bias}, expected {scores} or sizes of 1 in it")
        if keep is not None:
            cls.require_same("keep", keep, "the scores", scores)
        return tensor_type([*shape[:-1], value.get_shape()[-1]], query.element_type), scores

    def _infer_results(self) -> tuple[Tensor, ...]:
        _require_count(self, 3 + self.has_bias + self.has_keep)
        return self.infer(
            tensor_of(self.query),
            tensor_of(self.key),
            tensor_of(self.value),
            None if self.bias is None else tensor_of(self.bias),
            None if self.keep is None else tensor_of(self.keep),
        )


@irdl_op_definition
class AttentionGradOp(CirhOp):
    """Gradients of `Attention` by query, key and value, from the probabilities that it gave."""

    name = "cirh.AttentionGrad"
    TRAITS: ClassVar[OpTraits] = mixes(fp16=Fp16.STARTS, ends_update=True, gradient_of=AttentionOp)
    grad = operand_def()
    query = operand_def()
    key = operand_def()
    value = operand_def()
    probabilities = operand_def()
    optional = var_operand_def()
    dquery = result_def()
    dkey = result_def()
    dvalue = result_def()
    scale_attr = prop_def(FLOAT, prop_name="scale")
    has_keep_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="has_keep")
    scale = FloatParameter("scale")
    has_keep = BoolParameter("has_keep")

    def __init__(
        self,
        grad: Value,
        query: Value,
        key: Value,
        value: Value,
        probabilities: Value,
        keep: Value | None = None,
        scale: float = 1.0,
    ) -> None:
        operands = [grad, query, key, value, probabilities, *([] if keep is None else [keep])]
        super().__init__(
            operands,
            self.infer([operand_type(operand) for operand in operands]),
            {"scale": float_attr(scale), "has_keep": bool_attr(keep is not None)},
        )

    @property
    def keep(self) -> SSAValue | None:
        """The operand that multiplies the probabilities."""
        return self.operands[5] if self.has_keep else None

    @classmethod
    def infer(cls, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Result types: those of query, key and value. `operands` are in the op's order, keep last if any."""
        grad, query, key, value, *scores = operands
        expected = _scores_type(cls, query, key, value)
        context = tensor_type([*expected.get_shape()[:-1], value.get_shape()[-1]], query.element_type)
        cls.require_same("grad", grad, "the context", context)
        for name, tensor in zip(("probabilities", "keep"), scores, strict=False):
            cls.require_same(name, tensor, "the scores", expected)
        return query, key, value

    def _infer_results(self) -> tuple[Tensor, ...]:
        _require_count(self, 5 + self.has_keep)
        return self.infer([tensor_of(operand) for operand in self.operands])


def _require_count(op: CirhOp, expected: int) -> None:
    if len(op.operands) != expected:
        op.fail(f"got {len(op.operands)} operands, expected {expected} as has_bias and has_keep say")
