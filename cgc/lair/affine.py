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
    """Return the map from loop i to dimension i."""
    return AffineMap.identity(loops)


def compose(outer: AffineMap, inner: AffineMap) -> AffineMap:
    """Apply `inner`, then `outer`, and simplify."""
    results = []
    for expr in outer.results:
        replaced = expr.replace_dims_and_symbols(inner.results, ())
        # Only nested expressions are simplified, since xDSL turns `mod` into a difference.
        has_nested = any(isinstance(inner.results[loop], AffineBinaryOpExpr) for loop in expr.used_dims())
        needs_simplify = has_nested and isinstance(expr, AffineBinaryOpExpr)
        results.append(replaced.simplify(inner.num_dims, 0) if needs_simplify else replaced)
    return AffineMap(inner.num_dims, 0, tuple(results))


def mark_partial_dims(mapping: AffineMap, extents: Sequence[int], shape: Sequence[int]) -> AffineMap:
    """Add `mod size` to each loop that covers only a part of its dimension."""
    # A loop that is an index by itself would determine its extent, which is the size of the dimension.
    results = [
        expr % size if isinstance(expr, AffineDimExpr) and extents[expr.position] != size else expr
        for expr, size in zip(mapping.results, shape, strict=True)
    ]
    return affine_map(mapping.num_dims, results)


def inverse_permutation(mapping: AffineMap) -> AffineMap | None:
    """Return the inverse of a map that permutes the loops; None for other maps."""
    positions = [expr.position for expr in mapping.results if isinstance(expr, AffineDimExpr)]
    if len(positions) != len(mapping.results) or sorted(positions) != list(range(mapping.num_dims)):
        return None
    return affine_map(len(positions), [dim(positions.index(loop)) for loop in range(mapping.num_dims)])


def reshape_map(source: Sequence[int], target: Sequence[int]) -> AffineMap:
    """Return the map from indices of `target` to indices of `source`, in row-major order."""
    # Dimensions are matched in the smallest groups of equal product, so that unchanged ones stay plain loops.
    results: list[AffineExpr | int] = []
    for source_group, target_group in _equal_groups(source, target):
        if [size for size in source_group if size > 1] == [size for _, size in target_group if size > 1]:
            positions = iter([position for position, size in target_group if size > 1])
            results += [dim(next(positions)) if size > 1 else 0 for size in source_group]
            continue
        linear: AffineExpr = AffineExpr.constant(0)
        for position, size in target_group:
            linear = linear * size + dim(position)
        stride = math.prod(source_group)
        for number, size in enumerate(source_group):
            stride //= size
            quotient = linear // stride if stride > 1 else linear
            results.append(0 if size == 1 else quotient % size if number > 0 else quotient)
    return affine_map(len(target), results)


def _equal_groups(
    source: Sequence[int], target: Sequence[int]
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Yield groups of contiguous dimensions of equal product: source sizes, target (position, size)."""
    source_dims, target_dims = list(source), list(enumerate(target))
    while source_dims or target_dims:
        source_group, target_group = source_dims[:1], target_dims[:1]
        del source_dims[:1], target_dims[:1]
        while (source_size := math.prod(source_group)) != (
            target_size := math.prod(size for _, size in target_group)
        ):
            if source_size < target_size:
                source_group.append(source_dims.pop(0))
            else:
                target_group.append(target_dims.pop(0))
        while source_dims and source_dims[0] == 1:
            source_group.append(source_dims.pop(0))
        while target_dims and target_dims[0][1] == 1:
            target_group.append(target_dims.pop(0))
        yield source_group, target_group
