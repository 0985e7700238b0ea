"""Lazy tensors: an expression computes its elements in the body of the loop nest that needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import Block
from xdsl.ir.affine import AffineExpr, AffineMap

from cgc.lair.affine import affine_map, compose, identity, partial
from cgc.lair.build import Array, Builder, Read, Scalar, affine_index, constant, extract
from cgc.lair.dialect import gives_every_loop

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Expression:
    """A tensor whose elements are functions of their indices.

    Attributes:
        shape: Sizes of its dimensions.
        dtype: NumPy name of its device type.
    """

    shape: Shape
    dtype: str

    def _operands_at(self, places: AffineMap) -> Iterable[tuple[Expression, AffineMap]]:
        """Yield the elements of other expressions that the element at `places` is computed from."""
        return ()

    def _evaluate(self, body: Body, places: AffineMap) -> Scalar:
        """Compute the element at `places` in a body."""
        raise NotImplementedError


class Body:
    """A loop body in the making.

    Attributes:
        block: The block of the body.
        elements: The elements that it has read, by array and place.
    """

    def __init__(self, block: Block, elements: Mapping[tuple[int, AffineMap], Scalar]) -> None:
        self.block = block
        self.elements = elements
        self._computed: dict[tuple[int, AffineMap], Scalar] = {}

    def compute(self, expression: Expression, places: AffineMap) -> None:
        """Compute the element of an expression, whose operands have been computed."""
        self._computed[id(expression), places] = expression._evaluate(self, places)

    def element(self, expression: Expression, places: AffineMap) -> Scalar:
        """Return an element that has been computed."""
        return self._computed[id(expression), places]


@dataclass(frozen=True, eq=False)
class View(Expression):
    """Elements of an array, at the places that a map gives for the indices."""

    array: Array
    map: AffineMap

    def _evaluate(self, body: Body, places: AffineMap) -> Scalar:
        return body.elements[id(self.array), compose(self.map, places)]


@dataclass(frozen=True, eq=False)
class Moved(Expression):
    """Elements of another expression, at the places that a map gives for the indices."""

    of: Expression
    map: AffineMap

    def _operands_at(self, places: AffineMap) -> Iterable[tuple[Expression, AffineMap]]:
        yield self.of, compose(self.map, places)

    def _evaluate(self, body: Body, places: AffineMap) -> Scalar:
        return body.element(self.of, compose(self.map, places))


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """One number at every place."""

    number: float

    def _evaluate(self, body: Body, places: AffineMap) -> Scalar:
        return constant(body.block, self.number, self.dtype)


@dataclass(frozen=True, eq=False)
class Index(Expression):
    """The index along one dimension."""

    dimension: int

    def _evaluate(self, body: Body, places: AffineMap) -> Scalar:
        return affine_index(body.block, places.results[self.dimension]).to(self.dtype)


@dataclass(frozen=True, eq=False)
class Pointwise(Expression):
    """A scalar function of the elements of its operands; operands of size 1 are read at 0."""

    function: Callable[..., Scalar]
    operands: Sequence[Expression]

    def _operands_at(self, places: AffineMap) -> Iterable[tuple[Expression, AffineMap]]:
        return ((operand, self._places_of(operand, places)) for operand in self.operands)

    def _evaluate(self, body: Body, places: AffineMap) -> Scalar:
        return self.function(*(body.element(x, self._places_of(x, places)) for x in self.operands))

    def _places_of(self, operand: Expression, places: AffineMap) -> AffineMap:
        if operand.shape == self.shape:
            return places
        results = [0 if size == 1 else places.results[d] for d, size in enumerate(operand.shape)]
        return affine_map(places.num_dims, results)


@dataclass(frozen=True, eq=False)
class Gathered(Expression):
    """Elements of an array at places that data decide.

    Attributes:
        array: What is read.
        index: For each dimension of the array the index from the data, if there is one.
        offset: For each dimension of the array the place within the slice.
        last: For each dimension of the array the largest valid index.
        fill: What an index out of range gives; None clips the index instead.
    """

    array: Array
    index: Sequence[Expression | None]
    offset: AffineMap
    last: Sequence[int]
    fill: float | None

    def _operands_at(self, places: AffineMap) -> Iterable[tuple[Expression, AffineMap]]:
        return ((index, places) for index in self.index if index is not None)

    def _evaluate(self, body: Body, places: AffineMap) -> Scalar:
        in_range: Scalar | None = None
        offsets = compose(self.offset, places).results
        is_zero = [offset == AffineExpr.constant(0) for offset in offsets]
        found = [
            affine_index(body.block, offset) if index is None or not zero else None
            for index, offset, zero in zip(self.index, offsets, is_zero, strict=True)
        ]
        for axis, (index, last) in enumerate(zip(self.index, self.last, strict=True)):
            if index is None:
                continue
            number = body.element(index, places)
            place = number.max(0).min(last).to("index")
            within = found[axis]
            found[axis] = place if within is None else place + within
            fits = number.compare("GE", 0) & number.compare("LE", last)
            in_range = fits if in_range is None else in_range & fits
        element = extract(body.block, self.array, [place for place in found if place is not None])
        if in_range is None or self.fill is None:
            return element
        return in_range.select(element, self.fill)


def materialize(builder: Builder, expression: Expression) -> Array:
    """Return an array with the elements of an expression; a nest computes it unless it is one already."""
    if isinstance(expression, Constant):
        return builder.fill(expression.shape, expression.dtype, expression.number)
    if isinstance(expression, View):
        array = expression.array
        if array.shape == expression.shape and expression.map == identity(array.rank):
            return array
    return build_nest(builder, [expression])[0]


def materialize_together(builder: Builder, expressions: Sequence[Expression]) -> list[Array]:
    """Materialize several expressions; computed ones of equal shape share a nest."""
    arrays: dict[int, Array] = {}
    groups: dict[Shape, list[int]] = {}
    for number, expression in enumerate(expressions):
        if isinstance(expression, Pointwise):
            groups.setdefault(expression.shape, []).append(number)
        else:
            arrays[number] = materialize(builder, expression)
    for numbers in groups.values():
        made = build_nest(builder, [expressions[number] for number in numbers])
        arrays.update(zip(numbers, made, strict=True))
    return [arrays[number] for number in range(len(expressions))]


def build_nest(builder: Builder, expressions: Sequence[Expression]) -> list[Array]:
    """Add a nest that computes all elements of expressions of one shape."""
    shape = expressions[0].shape
    writes = [Read(builder.empty(shape, e.dtype), identity(len(shape))) for e in expressions]
    return build_loops(builder, shape, (), expressions, writes, lambda elements, _old: elements)


def build_loops(
    builder: Builder,
    extents: Shape,
    carried: Sequence[int],
    expressions: Sequence[Expression],
    writes: Sequence[Read],
    combine: Callable[[list[Scalar], list[Scalar]], Sequence[Scalar]],
    places: Sequence[AffineMap] | None = None,
) -> list[Array]:
    """Add a nest.

    Args:
        builder: Adds to the body of the function.
        extents: Extents of the loops.
        carried: Loops that carry a running value.
        expressions: Evaluated in every iteration.
        writes: Initial values of the results, and where an iteration writes.
        combine: Makes the results of an iteration of its elements and the old values of the results.
        places: Where each expression is evaluated; the iteration itself when None.
    """
    if places is None:
        places = [identity(len(extents))] * len(expressions)
    order = _operands_first(zip(expressions, places, strict=True))
    reads: dict[tuple[int, AffineMap], Read] = {}
    for expression, where in order:
        if isinstance(expression, View):
            mapping = compose(expression.map, where)
            read = Read(expression.array, partial(mapping, extents, expression.array.shape))
            reads.setdefault((id(expression.array), mapping), read)
    if not gives_every_loop([*(r.map for r in reads.values()), *(w.map for w in writes)], len(extents)):
        # The extent of a loop shows only where an indexing map has the loop by itself.
        arrays = [view(build_nest(builder, [expression])[0]) for expression in expressions]
        return build_loops(builder, extents, carried, arrays, writes, combine, places)

    def build_body(*values: Scalar) -> Sequence[Scalar]:
        body = Body(values[-1].block, dict(zip(reads, values, strict=False)))
        for expression, where in order:
            body.compute(expression, where)
        found = [body.element(e, where) for e, where in zip(expressions, places, strict=True)]
        return combine(found, list(values[len(reads) :]))

    return builder.loops(len(extents), carried, list(reads.values()), writes, build_body)


def _operands_first(
    roots: Iterable[tuple[Expression, AffineMap]],
) -> list[tuple[Expression, AffineMap]]:
    """Return all elements that some elements are computed from, each once and after its operands."""
    order: list[tuple[Expression, AffineMap]] = []
    done: set[tuple[int, AffineMap]] = set()
    # A stack instead of recursion: chains of thousands of operations exist.
    pending = [(expression, places, False) for expression, places in reversed([*roots])]
    while pending:
        expression, places, operands_done = pending.pop()
        if (id(expression), places) in done:
            continue
        if operands_done:
            done.add((id(expression), places))
            order.append((expression, places))
            continue
        pending.append((expression, places, True))
        pending.extend((*operand, False) for operand in reversed([*expression._operands_at(places)]))
    return order


def view(array: Array) -> View:
    """Return an array as an expression."""
    return View(array.shape, array.dtype, array, identity(array.rank))


def move(x: Expression, shape: Shape, mapping: AffineMap) -> Expression:
    """Return an expression whose element is that of `x` at the place that a map gives for its indices."""
    if isinstance(x, Constant):
        return Constant(shape, x.dtype, x.number)
    if isinstance(x, View):
        return View(shape, x.dtype, x.array, compose(x.map, partial(mapping, shape, x.shape)))
    return Moved(shape, x.dtype, x, mapping)


def convert(builder: Builder, array: Array, dtype: str) -> Array:
    """Return an array with the elements converted to another type."""
    if array.dtype == dtype:
        return array
    return build_nest(builder, [Pointwise(array.shape, dtype, lambda x: x.to(dtype), [view(array)])])[0]
