"""Counts, images and dependences by islpy against visiting every iteration."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.ir.affine import AffineExpr, AffineMap

from cgc.lair.affine import affine_map, compose, dim, inverse_permutation, reshape_map
from cgc.lair.polyhedra import access, carried_loops, count, domain, footprint, is_injective, tile
from tests.property.cgc.examples import examples

few = settings(max_examples=examples(20))
extents_lists = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@st.composite
def exprs(draw: st.DrawFn, loops: int) -> AffineExpr:
    """Sums of multiples of loops, whole or divided."""
    total = AffineExpr.constant(draw(st.integers(0, 3)))
    for loop in draw(st.sets(st.integers(0, loops - 1), max_size=2)):
        term = dim(loop) * draw(st.integers(1, 3))
        kind = draw(st.sampled_from(["plain", "plain", "div", "mod"]))
        divisor = draw(st.integers(2, 3))
        total = total + (term if kind == "plain" else term // divisor if kind == "div" else term % divisor)
    return total


@st.composite
def nests(draw: st.DrawFn) -> tuple[tuple[int, ...], AffineMap]:
    extents = draw(extents_lists)
    results = draw(st.lists(exprs(len(extents)), max_size=3))
    return extents, affine_map(len(extents), results)


def iterations(extents: Sequence[int], begins: Sequence[int] | None = None) -> Iterator[tuple[int, ...]]:
    starts = begins or [0] * len(extents)
    return itertools.product(
        *(range(start, start + extent) for start, extent in zip(starts, extents, strict=True))
    )


def touched(mapping: AffineMap, points: Iterator[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {mapping.eval(point, ()) for point in points}


@few
@given(nests())
def test_the_points_of_a_domain_and_of_an_image(nest: tuple[tuple[int, ...], AffineMap]) -> None:
    extents, mapping = nest
    assert count(domain(extents)) == len(list(iterations(extents)))
    assert count(access(extents, mapping).range()) == len(touched(mapping, iterations(extents)))


@few
@given(extents_lists, st.data())
def test_tiles_cover_a_domain_once_edges_included(extents: tuple[int, ...], data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, extent)) for extent in extents]
    places = itertools.product(
        *(range(-(-extent // size)) for extent, size in zip(extents, sizes, strict=True))
    )
    counts = {place: count(tile(extents, sizes, place)) for place in places}
    assert sum(counts.values()) == count(domain(extents))
    for place, points in counts.items():
        cut = [
            min(size, extent - size * number)
            for size, extent, number in zip(sizes, extents, place, strict=True)
        ]
        assert points == np.prod(cut)
    assert counts[(0,) * len(extents)] == max(counts.values())


@few
@given(nests(), st.data())
def test_the_footprint_of_a_tile(nest: tuple[tuple[int, ...], AffineMap], data: st.DataObject) -> None:
    """The most elements that a whole tile touches; an upper bound where loops are entangled."""
    extents, mapping = nest
    sizes = tuple(data.draw(st.integers(1, extent)) for extent in extents)
    numbers = tuple(-(-extent // size) for extent, size in zip(extents, sizes, strict=True))
    found = [
        len(touched(mapping, iterations(sizes, [size * n for size, n in zip(sizes, place, strict=True)])))
        for place in itertools.product(*(range(number) for number in numbers))
    ]
    got = footprint(sizes, mapping, numbers)
    used = [expr.used_dims() for expr in mapping.results]
    if all(len(loops) <= 1 for loops in used) and len(set().union(*used)) == sum(map(len, used)):
        assert got == max(found)
    else:
        assert got >= max(found)


@few
@given(nests())
def test_the_loops_that_carry_a_value(nest: tuple[tuple[int, ...], AffineMap]) -> None:
    extents, mapping = nest
    carried = set()
    for first, second in itertools.combinations(iterations(extents), 2):
        if mapping.eval(first, ()) == mapping.eval(second, ()):
            carried |= {loop for loop, (a, b) in enumerate(zip(first, second, strict=True)) if a != b}
    assert carried_loops(extents, mapping) == tuple(sorted(carried))


@few
@given(nests())
def test_injective_maps(nest: tuple[tuple[int, ...], AffineMap]) -> None:
    extents, mapping = nest
    used = sorted(mapping.used_dims())
    seen: dict[tuple[int, ...], tuple[int, ...]] = {}
    expected = True
    for point in iterations(extents):
        shown = tuple(point[loop] for loop in used)
        expected &= seen.setdefault(mapping.eval(point, ()), shown) == shown
    assert is_injective(extents, mapping) == expected


@few
@given(st.lists(st.sampled_from([1, 2, 3, 4]), max_size=4), st.randoms(use_true_random=False), st.data())
def test_reshapes(source: list[int], random: object, data: st.DataObject) -> None:
    total = int(np.prod(source, dtype=int))
    target = data.draw(st.sampled_from(list(_factorings(total))))
    x = np.arange(total).reshape(source)
    mapping = reshape_map(source, target)
    got = [x[mapping.eval(point, ())] for point in iterations(target)]
    assert got == list(range(total))


def _factorings(total: int) -> Iterator[tuple[int, ...]]:
    yield (total,)
    for first in range(1, total + 1):
        if total % first == 0:
            yield first, total // first
            yield first, 1, total // first
            yield 1, first, total // first, 1
    if total == 1:
        yield ()


@few
@given(nests(), st.data())
def test_composition_is_one_map_after_the_other(
    nest: tuple[tuple[int, ...], AffineMap], data: st.DataObject
) -> None:
    extents, inner = nest
    outer = affine_map(len(inner.results), [data.draw(exprs(len(inner.results)))] if inner.results else [])
    both = compose(outer, inner)
    for point in iterations(extents):
        assert both.eval(point, ()) == outer.eval(inner.eval(point, ()), ())


@few
@given(st.permutations(range(4)))
def test_inverses_of_permutations(order: list[int]) -> None:
    mapping = affine_map(4, [dim(loop) for loop in order])
    inverse = inverse_permutation(mapping)
    assert inverse is not None
    assert compose(inverse, mapping) == AffineMap.identity(4)
    assert inverse_permutation(affine_map(4, [dim(0), dim(1), dim(2)])) is None
    assert inverse_permutation(affine_map(2, [dim(0), dim(1) + 1])) is None
