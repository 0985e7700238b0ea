"""Lazy tensors: an expression computes its elements in the body of the loop nest that needs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import Block
from xdsl.ir.affine import AffineExpr, AffineMap

from cgc.lair.affine import affine_map, compose, identity, mark_partial_dims
from cgc.lair.build import Array, Builder, IndexedArray, Scalar, affine_index, constant, extract
from cgc.lair.dialect import determines_extents

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Expression(ABC):
    """A tensor whose elements are computed from their indices.

    Attributes:
        shape: Sizes of its dimensions.
        dtype: NumPy name of its device type.
    """

    shape: Shape
    dtype: str

    def _operands_at(self, index_map: AffineMap) -> Iterable[tuple[Expression, AffineMap]]:
        """Yield the expressions that an element is computed from, with the indices of their elements."""
        return ()

    @abstractmethod
    def _evaluate(self, body: Body, index_map: AffineMap) -> Scalar:
        """Compute the element at the indices that a map gives for an iteration."""


class Body:
    """A loop body under construction.

    Attributes:
        block: The block of the body.
        elements: The elements that it reads, by array (its `id`) and indices.
    """

    def __init__(self, block: Block, elements: Mapping[tuple[int, AffineMap], Scalar]) -> None:
        self.block = block
        self.elements = elements
        self._computed: dict[tuple[int, AffineMap], Scalar] = {}

    def compute(self, expression: Expression, index_map: AffineMap) -> None:
        """Compute the element of an expression; its operands must be computed."""
        self._computed[id(expression), index_map] = expression._evaluate(self, index_map)

    def element(self, expression: Expression, index_map: AffineMap) -> Scalar:
        """Return an element that has been computed."""
        return self._computed[id(expression), index_map]


@dataclass(frozen=True, eq=False)
class View(Expression):
    """Elements of an array at the indices that a map gives for the indices of the view."""

    array: Array
    map: AffineMap

    def _evaluate(self, body: Body, index_map: AffineMap) -> Scalar:
        return body.elements[id(self.array), compose(self.map, index_map)]


@dataclass(frozen=True, eq=False)
class Moved(Expression):
    """Elements of another expression at the indices that a map gives for the own indices."""

    source: Expression
    map: AffineMap

    def _operands_at(self, index_map: AffineMap) -> Iterable[tuple[Expression, AffineMap]]:
        yield self.source, compose(self.map, index_map)

    def _evaluate(self, body: Body, index_map: AffineMap) -> Scalar:
        return body.element(self.source, compose(self.map, index_map))


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """A tensor of equal elements."""

    number: float

    def _evaluate(self, body: Body, index_map: AffineMap) -> Scalar:
        return constant(body.block, self.number, self.dtype)


@dataclass(frozen=True, eq=False)
class Index(Expression):
    """The index along one dimension."""

    dimension: int

    def _evaluate(self, body: Body, index_map: AffineMap) -> Scalar:
        return affine_index(body.block, index_map.results[self.dimension]).to(self.dtype)


@dataclass(frozen=True, eq=False)
class Pointwise(Expression):
    """A scalar function of the elements of its operands; operands of size 1 are read at 0."""

    function: Callable[..., Scalar]
    operands: Sequence[Expression]

    def _operands_at(self, index_map: AffineMap) -> Iterable[tuple[Expression, AffineMap]]:
        return ((operand, self._index_map_of(operand, index_map)) for operand in self.operands)

    def _evaluate(self, body: Body, index_map: AffineMap) -> Scalar:
        return self.function(*(body.element(x, self._index_map_of(x, index_map)) for x in self.operands))

    def _index_map_of(self, operand: Expression, index_map: AffineMap) -> AffineMap:
        if operand.shape == self.shape:
            return index_map
        results = [0 if size == 1 else index_map.results[d] for d, size in enumerate(operand.shape)]
        return affine_map(index_map.num_dims, results)


@dataclass(frozen=True, eq=False)
class Gathered(Expression):
    """Elements of an array at indices that are data.

    Attributes:
        array: The array to read.
        index: For each dimension of the array the index that is data, if there is one.
        offset: For each dimension of the array the index within the slice.
        last: For each dimension of the array the largest valid index.
        fill: Element for an index out of range; None clips the index instead.
    """

    array: Array
    index: Sequence[Expression | None]
    offset: AffineMap
    last: Sequence[int]
    fill: float | None

    def _operands_at(self, index_map: AffineMap) -> Iterable[tuple[Expression, AffineMap]]:
        return ((index, index_map) for index in self.index if index is not None)

    def _evaluate(self, body: Body, index_map: AffineMap) -> Scalar:
        in_range: Scalar | None = None
        offsets = compose(self.offset, index_map).results
        is_zero = [offset == AffineExpr.constant(0) for offset in offsets]
        indices = [
            affine_index(body.block, offset) if index is None or not zero else None
            for index, offset, zero in zip(self.index, offsets, is_zero, strict=True)
        ]
        for axis, (index, last) in enumerate(zip(self.index, self.last, strict=True)):
            if index is None:
                continue
            start = body.element(index, index_map)
            clipped = start.max(0).min(last).to("index")
            within = indices[axis]
            indices[axis] = clipped if within is None else clipped + within
            is_valid = start.compare("GE", 0) & start.compare("LE", last)
            in_range = is_valid if in_range is None else in_range & is_valid
        element = extract(body.block, self.array, [index for index in indices if index is not None])
        if in_range is None or self.fill is None:
            return element
        return in_range.select(element, self.fill)


def materialize(builder: Builder, expression: Expression) -> Array:
    """Return an array with the elements of an expression; add a nest that computes it if needed."""
    if isinstance(expression, Constant):
        return builder.fill(expression.shape, expression.dtype, expression.number)
    if isinstance(expression, View):
        array = expression.array
        if array.shape == expression.shape and expression.map == identity(array.rank):
            return array
    return build_nest(builder, [expression])[0]


def materialize_together(builder: Builder, expressions: Sequence[Expression]) -> list[Array]:
    """Materialize several expressions; pointwise ones of equal shape share a nest."""
    arrays: dict[int, Array] = {}
    groups: dict[Shape, list[int]] = {}
    for number, expression in enumerate(expressions):
        if isinstance(expression, Pointwise):
            groups.setdefault(expression.shape, []).append(number)
        else:
            arrays[number] = materialize(builder, expression)
    for numbers in groups.values():
        group_arrays = build_nest(builder, [expressions[number] for number in numbers])
        arrays.update(zip(numbers, group_arrays, strict=True))
    return [arrays[number] for number in range(len(expressions))]


def build_nest(builder: Builder, expressions: Sequence[Expression]) -> list[Array]:
    """Add a nest that computes all elements of expressions of one shape."""
    shape = expressions[0].shape
    writes = [IndexedArray(builder.empty(shape, e.dtype), identity(len(shape))) for e in expressions]
    return build_loops(builder, shape, (), expressions, writes, lambda elements, _old: elements)


def build_loops(
    builder: Builder,
    extents: Shape,
    carried: Sequence[int],
    expressions: Sequence[Expression],
    writes: Sequence[IndexedArray],
    combine: Callable[[list[Scalar], list[Scalar]], Sequence[Scalar]],
    index_maps: Sequence[AffineMap] | None = None,
) -> list[Array]:
    """Add a nest.

    Args:
        builder: Adds to the body of the function.
        extents: Extents of the loops.
        carried: Loops that carry a running value.
        expressions: Evaluated in every iteration.
        writes: Initial values of the results, and the elements that an iteration writes.
        combine: Returns the results of an iteration from its elements and the old values of the results.
        index_maps: From an iteration to the indices of each expression; identities if None.
    """
    if index_maps is None:
        index_maps = [identity(len(extents))] * len(expressions)
    order = _topological_order(zip(expressions, index_maps, strict=True))
    reads: dict[tuple[int, AffineMap], IndexedArray] = {}
    for expression, index_map in order:
        if isinstance(expression, View):
            mapping = compose(expression.map, index_map)
            read = IndexedArray(expression.array, mark_partial_dims(mapping, extents, expression.array.shape))
            reads.setdefault((id(expression.array), mapping), read)
    if not determines_extents([*(r.map for r in reads.values()), *(w.map for w in writes)], len(extents)):
        # No operand is indexed by one of the loops itself, which would determine its extent. Arrays of the
        # expressions are.
        arrays = [view(build_nest(builder, [expression])[0]) for expression in expressions]
        return build_loops(builder, extents, carried, arrays, writes, combine, index_maps)

    def build_body(*values: Scalar) -> Sequence[Scalar]:
        body = Body(values[-1].block, dict(zip(reads, values, strict=False)))
        for expression, index_map in order:
            body.compute(expression, index_map)
        elements = [body.element(e, index_map) for e, index_map in zip(expressions, index_maps, strict=True)]
        return combine(elements, list(values[len(reads) :]))

    return builder.loops(len(extents), carried, list(reads.values()), writes, build_body)


def _topological_order(
    roots: Iterable[tuple[Expression, AffineMap]],
) -> list[tuple[Expression, AffineMap]]:
    """Return expressions and all that they are computed from, each once and after its operands."""
    order: list[tuple[Expression, AffineMap]] = []
    done: set[tuple[int, AffineMap]] = set()
    # No recursion, since there are chains of thousands of operations.
    pending = [(expression, index_map, False) for expression, index_map in reversed([*roots])]
    while pending:
        expression, index_map, operands_done = pending.pop()
        if (id(expression), index_map) in done:
            continue
        if operands_done:
            done.add((id(expression), index_map))
            order.append((expression, index_map))
            continue
        pending.append((expression, index_map, True))
        pending.extend((*operand, False) for operand in reversed([*expression._operands_at(index_map)]))
    return order


def view(array: Array) -> View:
    """Return an array as an expression."""
    return View(array.shape, array.dtype, array, identity(array.rank))


def move(x: Expression, shape: Shape, mapping: AffineMap) -> Expression:
    """Return an expression with the elements of `x` at the indices that a map gives for its own."""
    if isinstance(x, Constant):
        return Constant(shape, x.dtype, x.number)
    if isinstance(x, View):
        return View(shape, x.dtype, x.array, compose(x.map, mark_partial_dims(mapping, shape, x.shape)))
    return Moved(shape, x.dtype, x, mapping)


def convert(builder: Builder, array: Array, dtype: str) -> Array:
    """Return an array with the elements converted to another type."""
    if array.dtype == dtype:
        return array
    return build_nest(builder, [Pointwise(array.shape, dtype, lambda x: x.to(dtype), [view(array)])])[0]
