"""What linalg cannot express: calls of private functions that say what they are.

The declaration of such a function carries
    lair.op          the op of CIRH, "cirh.TopK"
    lair.attributes  the attributes of that op
    lair.types       the op's own types, from which the op can be built again
    lair.domain      the sizes of the loops that its implementation runs
    lair.work        what a point of them costs: "sort", "random", "scatter", "stages" or "simple"
One of scalars ("fmod_f32") has none of these: it is a function that `math` of xDSL lacks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import (
    DenseArrayBase,
    DictionaryAttr,
    FunctionType,
    StringAttr,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Region, TypeAttribute

from cgc.cirh.base import CirhOp
from cgc.cirh.facts import Order
from cgc.cirh.ops import ALL_OPS
from cgc.cirh.types import shape_of
from cgc.errors import LoweringError

OP = "lair.op"
ATTRIBUTES = "lair.attributes"
TYPES = "lair.types"
DOMAIN = "lair.domain"
WORK = "lair.work"

WORK_OF_A_POINT: dict[str, tuple[tuple[str, int], ...]] = {
    "simple": (("simple", 1),),
    "random": (("random", 1),),
    "scatter": (("simple", 1), ("stream", 1)),
    "sort": (("simple", 1), ("stream", 1)),
    "stages": (("simple", 2), ("stream", 1)),
}
"""The kinds of `lair.work`, as numbers of the kinds of work in `cgc.kernels.coefficients`."""


def declaration(
    name: str, op: CirhOp, inputs: Sequence[TypeAttribute], outputs: Sequence[TypeAttribute]
) -> FuncOp:
    """The private function that stands for an op.

    Args:
        name: of the function.
        op: the op; where it comes from is left out.
        inputs: types of LAIR of its operands.
        outputs: types of LAIR of its results.
    """
    domain, work = iteration_domain(op)
    function = FuncOp(name, (list(inputs), list(outputs)), Region(), "private")
    function.attributes.update(
        {
            OP: StringAttr(op.name),
            ATTRIBUTES: DictionaryAttr(dict(sorted(op.properties.items()))),
            TYPES: FunctionType.from_lists([*op.operand_types], [*op.result_types]),
            DOMAIN: DenseArrayBase.from_list(i64, list(domain)),
            WORK: StringAttr(work),
        }
    )
    return function


def iteration_domain(op: CirhOp) -> tuple[tuple[int, ...], str]:
    """(sizes of the loops, the work of a point).

    A sort of n elements is log2(n) merges of n, and other ops visit all elements in several stages. A scatter
    visits its updates. All others visit the largest tensor that they read or write.
    """
    if op.FACTS.order is Order.SORTS:
        shape = shape_of(op.operands[0])
        last = shape[-1] if shape else 1
        return (*shape, max(1, (last - 1).bit_length())), "sort"
    if op.FACTS.order is Order.SCATTERS:
        return shape_of(op.operands[-1]), "scatter"
    if op.FACTS.order is Order.STAGES:
        largest = max((shape_of(value) for value in (*op.results, *op.operands)), key=math.prod, default=())
        return (*largest, op.stages()), "stages"
    shapes = [shape_of(value) for value in (*op.results, *op.operands)]
    largest = max(shapes, key=math.prod, default=())
    return largest, "random" if op.FACTS.work.random else "simple"


def carried_loops(work: str, loops: int) -> tuple[int, ...]:
    """The loops of a domain that depend on one another.

    The merges of a sort and the elements that they compare; the stages of other ops; the updates of a
    scatter, of which several may name one place.
    """
    return {"sort": tuple(range(loops))[-2:], "scatter": (0,)[:loops], "stages": (loops - 1,)}.get(work, ())


def original(function: FuncOp) -> CirhOp:
    """The op of CIRH that a declaration stands for, on operands of its own."""
    name, attributes, types = (function.attributes.get(key) for key in (OP, ATTRIBUTES, TYPES))
    if not (
        isinstance(name, StringAttr)
        and isinstance(attributes, DictionaryAttr)
        and isinstance(types, FunctionType)
    ):
        raise LoweringError(
            f"@{function.sym_name.data} has no meaning: {OP}, {ATTRIBUTES} or {TYPES} is missing"
        )
    op_type = next((known for known in ALL_OPS if known.name == name.data), None)
    if op_type is None:
        raise LoweringError(f"@{function.sym_name.data}: {OP} is {name.data!r}, which is no op of CIRH")
    return op_type.create(
        operands=Block(arg_types=types.inputs.data).args,
        result_types=types.outputs.data,
        properties=dict(attributes.data),
    )
