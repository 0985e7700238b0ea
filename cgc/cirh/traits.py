"""Traits of ops, by which passes and the kernel library decide: `CirhOp.TRAITS`.

They decide by traits and not by names of ops, so an op that is added is known everywhere. What depends on an
op's attributes is a method of `CirhOp`: `work`, `worked_elements`, `row_reductions`, `sample_operands`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar, Protocol


class Elements(Enum):
    """Source of the elements of a result."""

    MADE = auto()
    """Not from operands: constants, ranges, random numbers."""
    KEPT = auto()
    """The same in the same order, under another shape."""
    CONVERTED = auto()
    """The same in the same order, in another type."""
    PERMUTED = auto()
    """The same in another order of dimensions."""
    REPEATED = auto()
    """The same, each in many positions: it is kept once and read often."""
    MOVED = auto()
    """Each is an element of an operand, from a position known at compile time: slices, padding."""
    LOOKED_UP = auto()
    """Each is an element of an operand, from a position that depends on data: rows of a table."""
    POINTWISE = auto()
    """Each is computed from the elements at its position."""
    MIXED = auto()
    """Each is computed from many: products, reductions, norms, sums of rows."""

    @property
    def only_moves(self) -> bool:
        """True if every element of a result is an element of an operand: nothing is computed or rounded."""
        return self in _MOVING

    @property
    def relabels(self) -> bool:
        """True if the elements stay in place, under another shape or type."""
        return self in (Elements.KEPT, Elements.CONVERTED)


_MOVING = frozenset({Elements.KEPT, Elements.PERMUTED, Elements.REPEATED, Elements.MOVED, Elements.LOOKED_UP})


class Fp16(Enum):
    """Use of 16 bits by an op in a program with mixed precision."""

    NEVER = auto()
    """It stays in float32: exponentials, roots, losses, updates."""
    FOLLOWS = auto()
    """It uses 16 bits between two ops that do."""
    STARTS = auto()
    """It always uses 16 bits."""


class Samples(Enum):
    """Results that have the samples of the operands, one per index of the first dimension."""

    KEPT = auto()
    """All."""
    FIRST = auto()
    """The first; the others add up over all samples."""
    SUMMED = auto()
    """None: it adds up over samples."""
    NONE = auto()
    """None: rows of a table, constants."""
    DRAWN = auto()
    """All, independent of the operands: random numbers for every sample."""


class Order(Enum):
    """Elements that an op has to visit in sequence."""

    ANY = auto()
    SORTS = auto()
    """Sorted runs are merged: each element is compared and moved once for each doubling of the runs."""
    SCATTERS = auto()
    """The rows of its last operand, of which several may have one destination."""
    STAGES = auto()
    """All elements in sequence, `CirhOp.stages` times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of each kind per element; `cgc.kernels.coefficients` has the cost of each kind.

    Attributes:
        simple: adds, multiplications, comparisons, selections.
        divide: divisions, square roots, powers of one.
        transcendental: exponentials, logarithms, tanh, erf, sin.
        random: random numbers.
        stream: movements into a PE or out of it.
    """

    simple: float = 0
    divide: float = 0
    transcendental: float = 0
    random: float = 0
    stream: float = 0

    @property
    def kinds(self) -> dict[str, float]:
        """The kinds of work with a count above 0, by name."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: times for name, times in found.items() if times}

    @property
    def computes(self) -> bool:
        """True if the work is more than moving elements."""
        return bool(self.kinds.keys() - {"stream"})

    def with_simple(self, times: float) -> Work:
        """Return the same work and some more simple operations."""
        return Work(
            simple=self.simple + times,
            divide=self.divide,
            transcendental=self.transcendental,
            random=self.random,
            stream=self.stream,
        )


NO_WORK = Work()
SIMPLE = Work(simple=1)
DIVIDE = Work(divide=1)
TRANSCENDENTAL = Work(transcendental=1)
STREAM = Work(stream=1)


class HasTraits(Protocol):
    """An op, as far as the traits of other ops refer to it."""

    TRAITS: ClassVar[OpTraits]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTraits:
    """Traits of one op.

    Attributes:
        elements: source of the elements of its results.
        work: work per element for the cost model; multiplications of matrix products are counted in
            `cgc.kernels`.
        fp16: use of 16 bits.
        samples: results that have samples.
        exact: its results are elements of its operands, their negatives, or zeros: nothing is rounded.
        activations: number of operands of a normalization that are activations; the others are vectors, which
            stay in float32 with all results but the first. None for other ops.
        product: a product of matrices or a convolution, whose second operand may stay while rows stream by.
        ends_update: it makes a gradient of many elements: the update of a parameter reaches back to it.
        activation: it is an activation of a layer.
        gradient_of: the op whose gradient it is.
        signs_only: a gradient that needs one bit of an element of the forward pass.
        order: sequential order of its work.
    """

    elements: Elements
    work: Work
    fp16: Fp16
    samples: Samples
    exact: bool = False
    activations: int | None = None
    product: bool = False
    ends_update: bool = False
    activation: bool = False
    gradient_of: type[HasTraits] | None = None
    signs_only: bool = False
    order: Order = Order.ANY


def pointwise(
    work: Work = SIMPLE,
    *,
    fp16: Fp16 = Fp16.NEVER,
    exact: bool = False,
    activation: bool = False,
    gradient_of: type[HasTraits] | None = None,
    signs_only: bool = False,
) -> OpTraits:
    """Return the traits of an op that computes each element from those at its place."""
    return OpTraits(
        elements=Elements.POINTWISE,
        work=work,
        fp16=fp16,
        samples=Samples.KEPT,
        exact=exact,
        activation=activation,
        gradient_of=gradient_of,
        signs_only=signs_only,
    )


def moves(elements: Elements, *, gradient_of: type[HasTraits] | None = None) -> OpTraits:
    """Return the traits of an op that only moves elements.

    It takes the precision of its neighbors and rounds nothing. Another shape costs nothing, and elements that
    are repeated are kept once.
    """
    work = NO_WORK if elements in (Elements.KEPT, Elements.REPEATED) else STREAM
    return OpTraits(
        elements=elements,
        work=work,
        fp16=Fp16.FOLLOWS,
        samples=Samples.KEPT,
        exact=True,
        gradient_of=gradient_of,
    )


def creates(work: Work) -> OpTraits:
    """Return the traits of an op that makes a constant."""
    return OpTraits(elements=Elements.MADE, work=work, fp16=Fp16.NEVER, samples=Samples.NONE)


def mixes(
    work: Work = SIMPLE,
    *,
    fp16: Fp16 = Fp16.NEVER,
    samples: Samples = Samples.KEPT,
    activations: int | None = None,
    product: bool = False,
    ends_update: bool = False,
    gradient_of: type[HasTraits] | None = None,
    order: Order = Order.ANY,
) -> OpTraits:
    """Return the traits of an op that computes an element from many."""
    return OpTraits(
        elements=Elements.MIXED,
        work=work,
        fp16=fp16,
        samples=samples,
        activations=activations,
        product=product,
        ends_update=ends_update,
        gradient_of=gradient_of,
        order=order,
    )


def draws(work: Work) -> OpTraits:
    """Return the traits of an op that makes random numbers."""
    return OpTraits(elements=Elements.MADE, work=work, fp16=Fp16.NEVER, samples=Samples.DRAWN)
