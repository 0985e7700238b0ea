"""Matching of sums and products of many terms, which a program may write in any order and nesting.

The gradient of a normalization reaches its input as several terms of a long sum, among terms of other paths;
which of them are adjacent depends on the program. So the functions search for terms instead of a tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter

from cgc.cirh import ops
from cgc.cirh.types import element_count, shape_of, tensor_of
from cgc.passes.constant_fold import constant_splat, splat_value


def variance_term(variance_grad: SSAValue, centered: SSAValue) -> Operation | None:
    """Return the op `variance_grad * 2 / N * centered`: the gradient of a variance by its elements.

    Args:
        variance_grad: of rows, `[..., 1]`, or of channels, `[channels]`.
        centered: x minus its mean; each variance is that of N of its elements.
    """
    # Without elements, any factor is right.
    expected = 2.0 / max(1.0, _elements_per_total(centered, variance_grad))
    for factor_before, broadcast in _broadcast_multiples(variance_grad):
        if shape_of(broadcast.result) != shape_of(centered):
            continue
        pending = [broadcast.result]
        while pending:
            value = pending.pop()
            for user in _users(value, (ops.MulOp, ops.DivOp)):
                factor, others = _product(user.result, broadcast.result)
                if others == [centered] and math.isclose(factor * factor_before, expected, rel_tol=1e-5):
                    found: Operation = user
                    return found
                if others in ([], [centered]):  # constant factors may follow
                    pending.append(user.result)
    return None


def _broadcast_multiples(value: SSAValue) -> Iterator[tuple[float, ops.BroadcastInDimOp]]:
    """Yield (constant, op) for each broadcast of a value times a constant."""
    for broadcast in _users(value, ops.BroadcastInDimOp):
        yield 1.0, broadcast
    for multiple in _users(value, (ops.MulOp, ops.DivOp)):
        factor, others = _product(multiple.result, value)
        if not others:
            yield from ((factor, broadcast) for broadcast in _users(multiple.result, ops.BroadcastInDimOp))


def is_element_count(number: SSAValue, value: SSAValue, total: SSAValue) -> bool:
    """Return True if a number is the number of elements that each element of a total adds up."""
    splat = constant_splat(number)
    return splat is not None and float(splat) == _elements_per_total(value, total)


# Maximum depth of products of products, usually two. A deeper product counts as one factor.
_MAX_PRODUCT_DEPTH = 8


def _product(
    value: SSAValue, opaque: SSAValue, depth: int = _MAX_PRODUCT_DEPTH
) -> tuple[float, list[SSAValue]]:
    """Return (constant factor, other factors) of a product, without its factor `opaque`."""
    owner = value.owner
    if value is opaque:
        return 1.0, []
    if depth and isinstance(owner, ops.MulOp | ops.DivOp):
        lhs, rhs = owner.lhs, owner.rhs
        splat = constant_splat(rhs)
        if splat is not None and (splat or isinstance(owner, ops.MulOp)):
            factor, others = _product(lhs, opaque, depth - 1)
            return factor * float(splat) if isinstance(owner, ops.MulOp) else factor / float(splat), others
        if isinstance(owner, ops.MulOp):
            left, right = _product(lhs, opaque, depth - 1), _product(rhs, opaque, depth - 1)
            return left[0] * right[0], [*left[1], *right[1]]
    return 1.0, [value]


def _elements_per_total(value: SSAValue, total: SSAValue) -> float:
    """Return the number of elements of a tensor for each element of a total of it."""
    return element_count(tensor_of(value)) / max(1, element_count(tensor_of(total)))


def centering_term(direct_op: Operation, by_variance_op: Operation) -> Operation | None:
    """Return the op that computes the mean of a row's gradient, which a sum subtracts from two given terms.

    The two terms are added and the mean is subtracted (or all three with opposite signs) in one sum, each
    once. No other op reads them or the ops that compute the mean.
    """
    # The mean may be that of the direct term only, since the mean of the other term is 0.
    return _centering(direct_op, by_variance_op, 1, _row_totals)


def channel_centering_term(direct_op: Operation, by_variance_op: Operation) -> Operation | None:
    """Return the op as `centering_term` does, for the mean over all dimensions but the last."""
    return _centering(direct_op, by_variance_op, 1, _channel_totals)


def opposed_centering_term(direct_op: Operation, by_variance_op: Operation) -> Operation | None:
    """Return the op as `centering_term` does, if one of the two terms has the opposite sign."""
    return _centering(direct_op, by_variance_op, -1, _row_totals)


def _centering(
    direct_op: Operation, by_variance_op: Operation, relative_sign: int, totals: Totals
) -> Operation | None:
    """Return the mean for two terms of equal signs in the sum (`relative_sign` 1) or opposite ones (-1)."""
    direct, by_variance = direct_op.results[0], by_variance_op.results[0]
    for total, path, sign in _sums(direct, by_variance, relative_sign, totals):
        for steps in _broadcast_means(total, direct):
            mean, inside = steps[-1], {*path, *steps}
            producers = (*path, *steps[:-1])
            if all(use.operation in inside for op in producers for use in op.results[0].uses):
                first, second, third = (_find_term(v, inside) for v in (direct, by_variance, mean.results[0]))
                if _are_terms_of_one_sum(first, (second, relative_sign), (third, -sign)):
                    return mean
    return None


def _sums(
    direct: SSAValue, by_variance: SSAValue, relative_sign: int, totals: Totals
) -> Iterator[tuple[SSAValue, list[Operation], int]]:
    """Yield totals of `direct`, or of both terms, with the ops that compute them and the sign of `direct`."""
    first, second = totals(direct), totals(by_variance)
    for one in first:
        yield one.results[0], [one], 1
        for other in second:
            if _is_row_mean(one.results[0]) or _is_row_mean(other.results[0]):
                continue  # a mean is already divided
            for both, sign in _combine(one.results[0], other.results[0], relative_sign):
                yield both.result, [one, other, both], sign
    for both, sign in _combine(direct, by_variance, relative_sign):
        for total in totals(both.result):
            yield total.results[0], [total], sign


def _combine(
    first: SSAValue, second: SSAValue, relative_sign: int
) -> Iterator[tuple[ops.AddOp | ops.SubOp, int]]:
    """Yield sums of two values, or differences for a relative sign of -1, with the sign of the first."""
    if relative_sign > 0:
        for addition in _users(first, ops.AddOp):
            if second in (addition.lhs, addition.rhs):
                yield addition, 1
        return
    for difference in _users(first, ops.SubOp):
        if second in (difference.lhs, difference.rhs):
            yield difference, 1 if difference.lhs is first else -1


def _row_totals(value: SSAValue) -> list[Operation]:
    """Return the ops that add up each row of a tensor, or take its mean."""
    last = len(shape_of(value)) - 1
    return [
        reduction
        for reduction in _users(value, ops.ReduceOp)
        if reduction.reduce_kind in ("ADD", "MEAN")
        and reduction.dimensions == (last,)
        and reduction.keep_dims
    ]


def _channel_totals(value: SSAValue) -> list[Operation]:
    """Return the ops that add up each channel of a tensor; a repeated factor multiplies the sum."""
    found: list[Operation] = _users(value, ops.BiasAddGradOp)
    owner = value.owner
    if isinstance(owner, ops.MulOp):
        for factors, other in ((owner.lhs, owner.rhs), (owner.rhs, owner.lhs)):
            repeated = factors.owner
            if isinstance(repeated, ops.BroadcastInDimOp) and repeated.broadcast_dimensions == (
                len(shape_of(value)) - 1,
            ):
                for total in _users(other, ops.BiasAddGradOp):
                    products = _users(total.results[0], ops.MulOp)
                    found += [product for product in products if repeated.x in (product.lhs, product.rhs)]
    return found


def _broadcast_means(total: SSAValue, value: SSAValue) -> Iterator[list[Operation]]:
    """Yield the ops that broadcast a total and divide it by its number of elements, or broadcast a mean."""
    if _is_row_mean(total):
        broadcasts = _users(total, ops.BroadcastInDimOp)
        yield from ([broadcast] for broadcast in broadcasts if broadcast.result.type == value.type)
        return
    kinds = (ops.DivOp, ops.MulOp)
    for first in _users(total, (ops.BroadcastInDimOp, *kinds)):
        repeats = isinstance(first, ops.BroadcastInDimOp)
        for second in _users(first.result, kinds if repeats else ops.BroadcastInDimOp):
            quotient = second if repeats else first
            if second.result.type == value.type and _is_mean(quotient, value, total):
                yield [first, second]


def _is_row_mean(value: SSAValue) -> bool:
    return isinstance(value.owner, ops.ReduceOp) and value.owner.reduce_kind == "MEAN"


def _is_mean(op: ops.DivOp | ops.MulOp, value: SSAValue, total: SSAValue) -> bool:
    """Return True if an op divides a total of a tensor, or its broadcast, by the number of elements."""
    splat, size = constant_splat(op.rhs), _elements_per_total(value, total)
    if splat is None or not size:
        return False
    return math.isclose(float(splat), size if isinstance(op, ops.DivOp) else 1 / size, rel_tol=1e-6)


# Finds the ops that add up the rows, or the channels, of a tensor.
Totals: TypeAlias = Callable[[SSAValue], list[Operation]]

_Term: TypeAlias = tuple[Operation, int] | None


def _are_terms_of_one_sum(first: _Term, *others: tuple[_Term, int]) -> bool:
    """Return True if terms are of one sum, the others with the sign of the first times the given sign."""
    return first is not None and all(term == (first[0], sign * first[1]) for term, sign in others)


def _find_term(value: SSAValue, inside: set[Operation]) -> _Term:
    """Return (last op of the sum that a value is a term of, its sign); None unless it is a term exactly once.

    Users `inside` do not count. A sum ends at a value with several users, or with a user that is no sum.
    """
    sign, top = 1, None
    while True:
        uses = [use for use in value.uses if use.operation not in inside]
        if len(uses) != 1 or not isinstance(uses[0].operation, ops.AddOp | ops.SubOp):
            return None if top is None else (top, sign)
        top = uses[0].operation
        if isinstance(top, ops.SubOp) and uses[0].index == 1:
            sign = -sign
        value = top.results[0]


def _users(value: SSAValue, kind: type[Any] | tuple[type[Any], ...]) -> list[Any]:
    return [use.operation for use in value.uses if isinstance(use.operation, kind)]


def are_added(first: Operation, second: Operation, *readers: Operation) -> bool:
    """Return True if two results are terms of one sum with one sign; only `readers` use them as well."""
    terms = [_find_term(op.results[0], set(readers)) for op in (first, second)]
    return _are_terms_of_one_sum(terms[0], (terms[1], 1))


def are_subtracted(first: Operation, second: Operation) -> bool:
    """Return True if two results are terms of one sum with opposite signs, and have no other use."""
    terms = [_find_term(op.results[0], set()) for op in (first, second)]
    return _are_terms_of_one_sum(terms[0], (terms[1], -1))


def neutral_term(rewriter: PatternRewriter, op: Operation) -> SSAValue:
    """Return the value that replaces a term removed from a sum: -0.0 if it is added, 0.0 if subtracted."""
    term = op.results[0]
    subtracted = any(isinstance(use.operation, ops.SubOp) and use.index == 1 for use in term.uses)
    return splat_value(rewriter, 0.0 if subtracted else -0.0, tensor_of(term))


def squares(root: SSAValue) -> tuple[SSAValue, ...] | None:
    """Return the tensors whose squares a rank-0 value adds up, as in a global norm; or None.

    The value may be any nesting of sums of `Reduce(x * x)`, also halved and doubled again, or concatenated,
    but no sum may be a term twice.
    """
    found: list[SSAValue] = []
    sums: set[Operation] = set()
    pending = [(root, 1.0)]
    while pending:  # no recursion, since a model may add up thousands of tensors one by one
        value, factor = pending.pop()
        owner = value.owner
        if element_count(tensor_of(value)) != 1:
            return None
        if isinstance(owner, ops.AddOp):
            if owner in sums:
                return None
            sums.add(owner)
        terms = _terms(value, factor)
        if terms is not None:
            pending += reversed(terms)
            continue
        if isinstance(owner, ops.ReduceOp) and owner.reduce_kind == "ADD":
            value = owner.x
        squared = _square_root_of(value, factor)
        if squared is None:
            return None
        found.append(squared)
    return tuple(found) or None


def _terms(value: SSAValue, factor: float) -> list[tuple[SSAValue, float]] | None:
    """Return (term, factor) of a composed number; None if it is a sum of squares, or no sum."""
    owner = value.owner
    match owner:
        case ops.ReshapeOp():
            return [(owner.x, factor)]
        case ops.MulOp() if (splat := constant_splat(owner.rhs)) is not None:
            return [(owner.lhs, factor * float(splat))]
        case ops.AddOp():
            return [(owner.lhs, factor), (owner.rhs, factor)]
        case ops.ReduceOp() if owner.reduce_kind == "ADD" and isinstance(owner.x.owner, ops.ConcatOp):
            return [(part, factor) for part in owner.x.owner.xs]
        case _:
            return None


def _square_root_of(value: SSAValue, factor: float) -> SSAValue | None:
    """Return the value whose elementwise square is `factor * value`."""
    owner = value.owner
    while isinstance(owner, ops.MulOp) and owner.lhs is not owner.rhs:
        splat = constant_splat(owner.rhs)
        if splat is None:
            return None
        factor *= float(splat)
        owner = owner.lhs.owner
    if isinstance(owner, ops.MulOp) and math.isclose(factor, 1.0, rel_tol=1e-6):
        return owner.lhs
    return None


def is_sum_of_squares(value: SSAValue) -> bool:
    """Return True if a rank-0 value adds up the squares of all elements of some tensors."""
    return not shape_of(value) and squares(value) is not None


def global_norm(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the square root of a sum of squares as one op."""
    norm = ops.L2NormOp(*(squares(value) or ()))
    rewriter.insert(norm)
    return norm.result


SUM_CONSTRAINTS = (
    is_element_count,
    variance_term,
    centering_term,
    channel_centering_term,
    opposed_centering_term,
    are_added,
    are_subtracted,
    is_sum_of_squares,
)
SUM_REWRITES = (neutral_term, global_norm)
