"""Indexing maps: the element of a tensor that an iteration reads or writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)


def dim(position: int) -> AffineExpr:
    """Return the iteration number of a loop."""
    return AffineExpr.dimension(position)


def affine_map(loops: int, results: Sequence[AffineExpr | int]) -> AffineMap:
    """Return a map from iterations of `loops` loops."""
    exprs = (AffineExpr.constant(result) if isinstance(result, int) else result for result in results)
    return AffineMap(loops, 0, tuple(exprs))


def identity(loops: int) -> AffineMap:
    """Return the map of loop i to dimension i."""
    return AffineMap.identity(loops)


def compose(outer: AffineMap, inner: AffineMap) -> AffineMap:
    """Apply `inner`, then `outer`, and simplify."""
    results = []
    for expr in outer.results:
        replaced = expr.replace_dims_and_symbols(inner.results, ())
        # The flattener writes `mod` as a difference, so only nested expressions are simplified.
        nested = any(isinstance(inner.results[loop], AffineBinaryOpExpr) for loop in expr.used_dims())
        deep = nested and isinstance(expr, AffineBinaryOpExpr)
        results.append(replaced.simplify(inner.num_dims, 0) if deep else replaced)
    return AffineMap(inner.num_dims, 0, tuple(results))


def partial(mapping: AffineMap, extents: Sequence[int], shape: Sequence[int]) -> AffineMap:
    """Add `mod size` to every loop that reaches only a part of its dimension."""
    # A loop that is an index by itself covers the whole dimension: its extent follows from that.
    results = [
        expr % size if isinstance(expr, AffineDimExpr) and extents[expr.position] != size else expr
        for expr, size in zip(mapping.results, shape, strict=True)
    ]
    return affine_map(mapping.num_dims, results)


def inverse_permutation(mapping: AffineMap) -> AffineMap | None:
    """Return the inverse of a map that only gives every loop a separate dimension, else None."""
    positions = [expr.position for expr in mapping.results if isinstance(expr, AffineDimExpr)]
    if len(positions) != len(mapping.results) or sorted(positions) != list(range(mapping.num_dims)):
        return None
    return affine_map(len(positions), [dim(positions.index(loop)) for loop in range(mapping.num_dims)])


def reshape_map(source: Sequence[int], target: Sequence[int]) -> AffineMap:
    """Return for elements of `target` the place in `source` of the same position in row-major order."""
    # Dimensions are taken in the smallest groups of equal product, so that equal ones remain dimensions.
    results: list[AffineExpr | int] = []
    for ours, theirs in _equal_groups(source, target):
        if [size for size in ours if size > 1] == [size for _, size in theirs if size > 1]:
            wide = iter([position for position, size in theirs if size > 1])
            results += [dim(next(wide)) if size > 1 else 0 for size in ours]
            continue
        linear: AffineExpr = AffineExpr.constant(0)
        for position, size in theirs:
            linear = linear * size + dim(position)
        stride = math.prod(ours)
        for index, size in enumerate(ours):
            stride //= size
            place = linear // stride if stride > 1 else linear
            results.append(0 if size == 1 else place % size if index > 0 else place)
    return affine_map(len(target), results)


def _equal_groups(
    source: Sequence[int], target: Sequence[int]
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Yield runs of dimensions of equal product: sizes of the source, (position, size) of the target."""
    left, right = list(source), list(enumerate(target))
    while left or right:
        ours, theirs = left[:1], right[:1]
        del left[:1], right[:1]
        while (have := math.prod(ours)) != (want := math.prod(size for _, size in theirs)):
            if have < want:
                ours.append(left.pop(0))
            else:
                theirs.append(right.pop(0))
        while left and left[0] == 1:
            ours.append(left.pop(0))
        while right and right[0][1] == 1:
            theirs.append(right.pop(0))
        yield ours, theirs
