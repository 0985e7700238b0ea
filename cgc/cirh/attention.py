"""Attention, forward and backward, as single ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def

from cgc.cirh.base import (
    BOOLEAN,
    FALSE,
    FLOAT,
    BoolParameter,
    CirhOp,
    FloatParameter,
    Value,
    bool_attr,
    float_attr,
    operand_type,
)
from cgc.cirh.facts import Facts, Fp16, mixes
from cgc.cirh.types import FLOATS, Tensor, tensor_of, tensor_type


def _scores_type(op: type[CirhOp], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The type of `query key^T`, `[..., L, S]`; checks the three against each other."""
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
    FACTS: ClassVar[Facts] = mixes(fp16=Fp16.STARTS, ends_update=True)
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
        """What is added to the scores."""
        return self.operands[3] if self.has_bias else None

    @property
    def keep(self) -> SSAValue | None:
        """What the probabilities are multiplied with."""
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
    FACTS: ClassVar[Facts] = mixes(fp16=Fp16.STARTS, ends_update=True, gradient_of=AttentionOp)
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
        """What the probabilities were multiplied with."""
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
