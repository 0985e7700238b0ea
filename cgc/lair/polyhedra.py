"""Sets of iterations and the elements they touch, by islpy: counted exactly, mostly without enumeration.

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

# Points of a tile up to which the image of a map of entangled loops is counted; above, it is bounded.
_IMAGE_LIMIT = 1 << 16

# Alignments of tiles that are tried; if there are more, those along one loop at a time.
_ALIGNMENTS_LIMIT = 64

# Points of a tile up to which index values are enumerated, ten times as fast as isl counts that few.
_ENUMERATED_LIMIT = 1 << 12


def domain(extents: Sequence[int], begins: Sequence[int] | None = None) -> isl.Set:
    """Return the iterations of a nest, or of a part of it that starts at `begins`."""
    starts = begins or [0] * len(extents)
    bounds = [
        f"{start} <= i{loop} < {start + extent}"
        for loop, (start, extent) in enumerate(zip(starts, extents, strict=True))
    ]
    return isl.Set(f"{{ [{_loops(len(extents))}] : {' and '.join(bounds) or 'true'} }}")


def tile(extents: Sequence[int], sizes: Sequence[int], place: Sequence[int]) -> isl.Set:
    """Return the iterations of one tile; those at the edge are cut to the domain.

    Args:
        extents: of the loops.
        sizes: of a tile along every loop.
        place: the tile's number along every loop.
    """
    begins = [size * number for size, number in zip(sizes, place, strict=True)]
    return domain(extents).intersect(domain(sizes, begins))


def access(extents: Sequence[int], mapping: AffineMap) -> isl.Map:
    """Return the relation of iterations and the elements that they touch."""
    places = ", ".join(isl_text(expr) for expr in mapping.results)
    relation = isl.Map(f"{{ [{_loops(len(extents))}] -> [{places}] }}")
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
    """Return the loops along which iterations that touch the same element follow each other.

    For the map of a running value these are the loops of the reduction: they depend on one another, all
    others can run in parallel.
    """
    # Loops by themselves have the same dependences with extents of 2.
    plain = all(isinstance(expr, AffineDimExpr | AffineConstantExpr) for expr in mapping.results)
    small = tuple(min(extent, 2) for extent in extents) if plain else extents
    touched = access(small, mapping)
    same = touched.apply_range(touched.reverse())
    before = isl.Map.lex_lt(touched.domain().get_space())
    distances = same.intersect(before).deltas()
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
    """Return the elements that the fullest tile touches.

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
    reached = math.prod(sizes[loop] for loop in used)
    extents = tuple(size * number for size, number in zip(sizes, number_of_tiles, strict=True))
    begins = _alignments(sizes, mapping, number_of_tiles)
    if reached * len(begins) > _IMAGE_LIMIT or is_injective(extents, mapping):
        return reached
    return max(_count_touched(sizes, mapping, begin) for begin in begins)


@lru_cache(maxsize=4096)
def is_injective(extents: Extents, mapping: AffineMap) -> bool:
    """Return True if no two iterations that differ in loops of the map touch the same element."""
    used = mapping.used_dims()
    shown = tuple(extent if loop in used else 1 for loop, extent in enumerate(extents))
    return bool(access(shown, mapping).is_injective())


def _image(sizes: Extents, expr: AffineExpr, number_of_tiles: Extents) -> int:
    """Return the values of one expression over the fullest tile; alignments to its divisors repeat."""
    if isinstance(expr, AffineDimExpr):
        return sizes[expr.position]
    mapping = AffineMap(len(sizes), 0, (expr,))
    used = mapping.used_dims()
    shown = tuple(size if loop in used else 1 for loop, size in enumerate(sizes))
    begins = _alignments(sizes, mapping, number_of_tiles)
    return max(_count_touched(shown, mapping, begin) for begin in begins)


def _alignments(sizes: Extents, mapping: AffineMap, number_of_tiles: Extents) -> list[list[int]]:
    """Return tile starts with distinct alignments to the divisors in a map; others repeat one of these."""
    period = math.lcm(*(divisor for expr in mapping.results for divisor in _divisors(expr)), 1)
    used = mapping.used_dims()
    numbers = [
        range(min(tiles, period // math.gcd(period, size)) if loop in used else 1)
        for loop, (size, tiles) in enumerate(zip(sizes, number_of_tiles, strict=True))
    ]
    few = math.prod(map(len, numbers)) <= _ALIGNMENTS_LIMIT
    places = itertools.product(*numbers) if few else _along_each(numbers)
    return [[number * size for number, size in zip(place, sizes, strict=True)] for place in places]


def _along_each(numbers: Sequence[range]) -> Iterator[tuple[int, ...]]:
    """Yield places that differ from the first one along one loop."""
    for loop, choices in enumerate(numbers):
        for number in choices:
            yield tuple(number if other == loop else 0 for other in range(len(numbers)))


def _count_touched(sizes: Sequence[int], mapping: AffineMap, begins: Sequence[int]) -> int:
    """Return the elements that one tile touches."""
    if len(mapping.results) == 1 and math.prod(sizes) <= _ENUMERATED_LIMIT:
        loops = np.ix_(*(np.arange(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)))
        evaluate: Any = mapping.results[0].eval  # annotated for numbers, but works for arrays as well
        return len(set(np.ravel(evaluate(loops, ())).tolist()))
    return count(_access_everywhere(mapping).intersect_domain(domain(sizes, begins)).range())


@lru_cache(maxsize=1024)
def _access_everywhere(mapping: AffineMap) -> isl.Map:
    places = ", ".join(isl_text(expr) for expr in mapping.results)
    return isl.Map(f"{{ [{_loops(mapping.num_dims)}] -> [{places}] }}")


def _is_separable(mapping: AffineMap) -> bool:
    """Return True if no loop occurs in two results: the image is the product of those of the results."""
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
