"""Traits of ops, by which passes and the kernel library decide: `CirhOp.TRAITS`.

They decide by traits and not by names of ops, so an op that is added is known everywhere. What depends on an
op's attributes is a method of `CirhOp`: `work`, `worked_elements`, `row_reductions`, `sample_operands`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar, Protocol


class Elements(Enum):
    """How the elements of a result come from those of the operands."""

    MADE = auto()
    """From none of them: constants, ranges, random numbers."""
    KEPT = auto()
    """The same in the same order, under another shape."""
    CONVERTED = auto()
    """The same in the same order, in another type."""
    PERMUTED = auto()
    """The same in another order of dimensions."""
    REPEATED = auto()
    """The same, each at many places: one that is kept once and read often."""
    MOVED = auto()
    """Each is one of an operand, from a place that is known to compile: slices, joints, padding."""
    LOOKED_UP = auto()
    """Each is one of an operand, from a place that data says: rows of a table."""
    POINTWISE = auto()
    """Each is computed from those at its place."""
    MIXED = auto()
    """Each is computed from many: products, reductions, norms, sums of rows."""

    @property
    def only_moves(self) -> bool:
        """True if every element of a result is one of an operand, so that nothing is computed or rounded."""
        return self in _MOVING

    @property
    def relabels(self) -> bool:
        """True if the elements stay where they are, under another shape or type."""
        return self in (Elements.KEPT, Elements.CONVERTED)


_MOVING = frozenset({Elements.KEPT, Elements.PERMUTED, Elements.REPEATED, Elements.MOVED, Elements.LOOKED_UP})


class Fp16(Enum):
    """Whether an op may compute in 16 bits where a program has mixed precision."""

    NEVER = auto()
    """It stays in float32: exponentials, roots, losses, updates."""
    FOLLOWS = auto()
    """It does between two ops that do."""
    STARTS = auto()
    """It always does."""


class Samples(Enum):
    """Which results have the samples of the operands, one in each place of the first dimension."""

    KEPT = auto()
    """All."""
    FIRST = auto()
    """The first; the others add up over all samples."""
    SUMMED = auto()
    """None: it adds up over samples."""
    NONE = auto()
    """None: rows of a table, constants."""
    DRAWN = auto()
    """All, whatever the operands are: random numbers for every sample."""


class Order(Enum):
    """Which elements an op has to go through one after the other."""

    ANY = auto()
    SORTS = auto()
    """Sorted runs are merged: each element is compared and moved once for each doubling of the runs."""
    SCATTERS = auto()
    """Its last operand's rows, of which several may go to one place."""
    STAGES = auto()
    """All elements several times in sequence, as often as `CirhOp.stages` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How often each element needs each kind of work, see `cgc.kernels.coefficients`.

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
        """The kinds that are needed at all, by their names."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: times for name, times in found.items() if times}

    @property
    def computes(self) -> bool:
        """True if there is more to do than to move elements."""
        return bool(self.kinds.keys() - {"stream"})

    def with_simple(self, times: float) -> Work:
        """Return the same and some simple operations more."""
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
    """An op, as far as traits of other ops refer to it."""

    TRAITS: ClassVar[OpTraits]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTraits:
    """The answers of one op.

    Attributes:
        elements: where the elements of its results come from.
        work: of an element for the cost model; of matrix products `cgc.kernels` counts multiplications.
        fp16: whether it may compute in 16 bits.
        samples: which results have samples.
        exact: its results are elements of its operands or their negatives, or zeros: nothing to round.
        activations: of a normalization, how many operands are activations; the others are vectors, which stay
            in float32 with all results but the first. None for other ops.
        product: a product of matrices or a convolution, whose second operand may stay while rows stream by.
        ends_update: it makes a gradient of many elements: the update of a parameter reaches back to it.
        activation: it is an activation of a layer.
        gradient_of: the op whose gradient it is.
        signs_only: a gradient that needs one bit of an element of the forward pass.
        order: of its work.
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


def made(work: Work) -> OpTraits:
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


def drawn(work: Work) -> OpTraits:
    """Return the traits of an op that makes random numbers."""
    return OpTraits(elements=Elements.MADE, work=work, fp16=Fp16.NEVER, samples=Samples.DRAWN)
