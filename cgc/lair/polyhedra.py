"""Sets of iterations and of the elements that they touch, counted exactly by isl, mostly without enumeration.

A loop nest's domain is the box of its extents. An access maps an iteration to an element; the image of a
tile of the domain is the part of the tensor that a PE holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import islpy as isl
import numpy as np
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)

Extents = tuple[int, ...]

# With more iterations, the elements that a tile touches are bounded instead of counted.
_MAX_COUNTED_POINTS = 1 << 16

# With more alignments of tiles, only those along one loop at a time are tried.
_MAX_ALIGNMENTS = 64

# Up to this size of a tile, enumerating index values is about ten times as fast as counting them with isl.
_MAX_ENUMERATED_POINTS = 1 << 12


def domain(extents: Sequence[int], begins: Sequence[int] | None = None) -> isl.Set:
    """Return the iterations of a nest, or of a part of it that starts at `begins`."""
    starts = begins or [0] * len(extents)
    bounds = [
        f"{start} <= i{loop} < {start + extent}"
        for loop, (start, extent) in enumerate(zip(starts, extents, strict=True))
    ]
    return isl.Set(f"{{ [{_loops(len(extents))}] : {' and '.join(bounds) or 'true'} }}")


def tile(extents: Sequence[int], sizes: Sequence[int], position: Sequence[int]) -> isl.Set:
    """Return the iterations of one tile; tiles at the edge are clipped to the domain.

    Args:
        extents: of the loops.
        sizes: of a tile along every loop.
        position: the tile's number along every loop.
    """
    begins = [size * number for size, number in zip(sizes, position, strict=True)]
    return domain(extents).intersect(domain(sizes, begins))


def access(extents: Sequence[int], mapping: AffineMap) -> isl.Map:
    """Return the relation from iterations to the elements that they touch."""
    elements = ", ".join(isl_text(expr) for expr in mapping.results)
    relation = isl.Map(f"{{ [{_loops(len(extents))}] -> [{elements}] }}")
    return relation.intersect_domain(domain(extents))


def count(points: isl.Set) -> int:
    """Return the number of points of a bounded set."""
    if points.is_box() and not points.is_empty():
        sizes = [
            points.dim_max_val(position).to_python() - points.dim_min_val(position).to_python() + 1
            for position in range(points.dim(isl.dim_type.set))
        ]
        return math.prod(sizes)
    return int(points.count_val().to_python())


@lru_cache(maxsize=4096)
def carried_loops(extents: Extents, mapping: AffineMap) -> tuple[int, ...]:
    """Return the loops in which iterations that touch the same element may differ.

    For the map of a running value these are the loops of the reduction; all others are parallel.
    """
    # If all indices are loops or constants, extents of 2 have the same dependencies.
    is_plain = all(isinstance(expr, AffineDimExpr | AffineConstantExpr) for expr in mapping.results)
    smallest = tuple(min(extent, 2) for extent in extents) if is_plain else extents
    touched = access(smallest, mapping)
    same_element = touched.apply_range(touched.reverse())
    earlier = isl.Map.lex_lt(touched.domain().get_space())
    distances = same_element.intersect(earlier).deltas()
    if distances.is_empty():
        return ()
    zero = isl.Set(f"{{ [{_loops(len(extents))}] }}")
    return tuple(
        loop
        for loop in range(len(extents))
        if not distances.is_subset(zero.fix_val(isl.dim_type.set, loop, isl.Val.zero(isl.DEFAULT_CONTEXT)))
    )


@lru_cache(maxsize=16384)
def footprint(sizes: Extents, mapping: AffineMap, number_of_tiles: Extents) -> int:
    """Return the number of elements that the fullest tile touches.

    Args:
        sizes: of a tile along every loop.
        mapping: from iterations to elements.
        number_of_tiles: along every loop.
    """
    if not mapping.results:
        return 1
    if _is_separable(mapping):
        return math.prod(_image(sizes, expr, number_of_tiles) for expr in mapping.results)
    used = sorted(mapping.used_dims())
    iterations = math.prod(sizes[loop] for loop in used)
    extents = tuple(size * number for size, number in zip(sizes, number_of_tiles, strict=True))
    begins = _alignments(sizes, mapping, number_of_tiles)
    if iterations * len(begins) > _MAX_COUNTED_POINTS or is_injective(extents, mapping):
        return iterations
    return max(_count_touched(sizes, mapping, begin) for begin in begins)


@lru_cache(maxsize=4096)
def is_injective(extents: Extents, mapping: AffineMap) -> bool:
    """Return True if no two iterations that differ in loops of the map touch the same element."""
    used = mapping.used_dims()
    used_extents = tuple(extent if loop in used else 1 for loop, extent in enumerate(extents))
    return bool(access(used_extents, mapping).is_injective())


def _image(sizes: Extents, expr: AffineExpr, number_of_tiles: Extents) -> int:
    """Return the number of values of an index expression over the fullest tile."""
    if isinstance(expr, AffineDimExpr):
        return sizes[expr.position]
    mapping = AffineMap(len(sizes), 0, (expr,))
    used = mapping.used_dims()
    used_extents = tuple(size if loop in used else 1 for loop, size in enumerate(sizes))
    begins = _alignments(sizes, mapping, number_of_tiles)
    return max(_count_touched(used_extents, mapping, begin) for begin in begins)


def _alignments(sizes: Extents, mapping: AffineMap, number_of_tiles: Extents) -> list[list[int]]:
    """Return the starts of tiles with distinct alignments to the divisors in a map."""
    period = math.lcm(*(divisor for expr in mapping.results for divisor in _divisors(expr)), 1)
    used = mapping.used_dims()
    numbers = [
        range(min(tiles, period // math.gcd(period, size)) if loop in used else 1)
        for loop, (size, tiles) in enumerate(zip(sizes, number_of_tiles, strict=True))
    ]
    all_fit = math.prod(map(len, numbers)) <= _MAX_ALIGNMENTS
    positions = itertools.product(*numbers) if all_fit else _vary_each_loop(numbers)
    return [[number * size for number, size in zip(position, sizes, strict=True)] for position in positions]


def _vary_each_loop(numbers: Sequence[range]) -> Iterator[tuple[int, ...]]:
    """Yield positions that differ from the first one along one loop."""
    for loop, choices in enumerate(numbers):
        for number in choices:
            yield tuple(number if other == loop else 0 for other in range(len(numbers)))


def _count_touched(sizes: Sequence[int], mapping: AffineMap, begins: Sequence[int]) -> int:
    """Return the number of elements that one tile touches."""
    if len(mapping.results) == 1 and math.prod(sizes) <= _MAX_ENUMERATED_POINTS:
        loops = np.ix_(*(np.arange(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)))
        evaluate: Any = mapping.results[0].eval  # annotated for numbers, but works for arrays as well
        return len(set(np.ravel(evaluate(loops, ())).tolist()))
    return count(_access_everywhere(mapping).intersect_domain(domain(sizes, begins)).range())


@lru_cache(maxsize=1024)
def _access_everywhere(mapping: AffineMap) -> isl.Map:
    elements = ", ".join(isl_text(expr) for expr in mapping.results)
    return isl.Map(f"{{ [{_loops(mapping.num_dims)}] -> [{elements}] }}")


def _is_separable(mapping: AffineMap) -> bool:
    """Return True if no loop occurs in two results, so that the image is the product of their images."""
    seen: set[int] = set()
    for expr in mapping.results:
        used = expr.used_dims()
        if used & seen:
            return False
        seen |= used
    return True


def _divisors(expr: AffineExpr) -> list[int]:
    """Return the divisors of divisions and remainders in an expression."""
    return [
        inner.rhs.value
        for inner in expr.dfs()
        if isinstance(inner, AffineBinaryOpExpr)
        and inner.kind not in (AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul)
        and isinstance(inner.rhs, AffineConstantExpr)
    ]


def isl_text(expr: AffineExpr) -> str:
    """Return an expression in the syntax of isl."""
    if isinstance(expr, AffineDimExpr):
        return f"i{expr.position}"
    if isinstance(expr, AffineConstantExpr):
        return str(expr.value)
    assert isinstance(expr, AffineBinaryOpExpr)
    left, right = isl_text(expr.lhs), isl_text(expr.rhs)
    if expr.kind is AffineBinaryOpKind.FloorDiv:
        return f"floor(({left})/{right})"
    if expr.kind is AffineBinaryOpKind.CeilDiv:
        return f"ceil(({left})/{right})"
    sign = {AffineBinaryOpKind.Add: "+", AffineBinaryOpKind.Mul: "*", AffineBinaryOpKind.Mod: "mod"}[
        expr.kind
    ]
    return f"(({left}) {sign} {right})"


def _loops(number: int) -> str:
    return ", ".join(f"i{loop}" for loop in range(number))
