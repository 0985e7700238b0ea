"""The dialects of LAIR: `linalg.generic`, and calls of private functions for ops that linalg cannot express.

The declaration of such a function carries
    lair.op          the CIRH op, such as "cirh.TopK"
    lair.attributes  the attributes of the op
    lair.types       the types of the op, from which it can be rebuilt
    lair.domain      the sizes of the loops of its implementation
    lair.work        the cost class of an iteration: "sort", "random", "scatter", "stages" or "simple"
A function of scalars ("fmod_f32") has none of these; it replaces an op that the `math` dialect of xDSL lacks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from typing import Self

from xdsl.dialects import arith
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FunctionType,
    StringAttr,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.dialects.linalg import Linalg
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.dialects.linalg.ops import IndexOp, YieldOp
from xdsl.dialects.math import Math
from xdsl.dialects.tensor import Tensor
from xdsl.ir import Attribute, Block, Dialect, Region, SSAValue, TypeAttribute
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.parser import Parser
from xdsl.rewriter import Rewriter

from cgc.cirh.base import CirhOp
from cgc.cirh.ops import ALL_OPS
from cgc.cirh.traits import Order
from cgc.cirh.types import shape_of
from cgc.errors import LoweringError

PARALLEL = IteratorTypeAttr(IteratorType.PARALLEL)
REDUCTION = IteratorTypeAttr(IteratorType.REDUCTION)


class GenericOp(linalg.GenericOp):
    """`linalg.generic` that can be parsed with several results; xDSL 0.74 can only print them."""

    @property
    def maps(self) -> tuple[AffineMap, ...]:
        """The indexing maps of inputs, then outputs."""
        return tuple(attribute.data for attribute in self.indexing_maps)

    @property
    def is_parallel(self) -> bool:
        """True if no loop carries a value."""
        return all(kind == PARALLEL for kind in self.iterator_types)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse the text form of MLIR."""
        attributes = parser.parse_optional_attr_dict()
        maps = [_as_map(parser, attribute) for attribute in _array(parser, attributes, "indexing_maps")]
        kinds = [_as_kind(parser, attribute) for attribute in _array(parser, attributes, "iterator_types")]
        inputs, outputs = _operands(parser, "ins"), _operands(parser, "outs")
        if parser.parse_optional_keyword("attrs") is not None:
            parser.parse_punctuation("=")
            attributes.update(parser.parse_optional_attr_dict())
        body = parser.parse_region()
        results: Sequence[Attribute] = ()
        if parser.parse_optional_punctuation("->") is not None:
            listed = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
            results = [parser.parse_type()] if listed is None else listed
        op = cls(inputs, outputs, body, maps, kinds, results)
        op.attributes.update(attributes)
        return op


def _array(parser: Parser, attributes: dict[str, Attribute], name: str) -> ArrayAttr[Attribute]:
    found = attributes.pop(name, None)
    if not isinstance(found, ArrayAttr):
        parser.raise_error(f"linalg.generic: {name} is {found}, expected an array")
    return found


def _as_map(parser: Parser, attribute: Attribute) -> AffineMapAttr:
    if not isinstance(attribute, AffineMapAttr):
        parser.raise_error(f"linalg.generic: got {attribute} in indexing_maps, expected an affine map")
    return attribute


def _as_kind(parser: Parser, attribute: Attribute) -> IteratorTypeAttr:
    if isinstance(attribute, IteratorTypeAttr):
        return attribute
    names = [kind.value for kind in IteratorType]
    if not isinstance(attribute, StringAttr) or attribute.data not in names:
        parser.raise_error(
            f"linalg.generic: got {attribute} in iterator_types, expected one of {', '.join(names)}"
        )
    return IteratorTypeAttr(IteratorType(attribute.data))


def _operands(parser: Parser, keyword: str) -> Sequence[SSAValue]:
    if parser.parse_optional_characters(keyword) is None:
        return ()
    position = parser.pos
    parser.parse_punctuation("(")
    names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    parser.parse_punctuation(")")
    return parser.resolve_operands(names, types, position)


def _linalg() -> Dialect:
    ops = [GenericOp if op is linalg.GenericOp else op for op in Linalg.operations]
    return Dialect("linalg", ops, list(Linalg.attributes))


# Dialects that a context needs in addition to builtin and func.
LAIR_DIALECTS = (Arith, Math, Tensor, _linalg())


def loop_extents(op: GenericOp) -> tuple[int, ...]:
    """Return the number of iterations of every loop.

    Raises:
        LoweringError: no operand determines the extent of a loop.
    """
    found: dict[int, int] = {}
    for operand, mapping in zip(op.operands, op.maps, strict=True):
        for size, expr in zip(shape_of(operand), mapping.results, strict=True):
            if isinstance(expr, AffineDimExpr):
                found[expr.position] = size
    missing = set(range(len(op.iterator_types))) - found.keys()
    if missing:
        raise LoweringError(f"linalg.generic: no operand determines the extent of loop d{min(missing)}")
    return tuple(found[loop] for loop in range(len(op.iterator_types)))


def points(op: GenericOp) -> int:
    """Return the number of iterations."""
    return math.prod(loop_extents(op))


def determines_extents(maps: Sequence[AffineMap], loops: int) -> bool:
    """Return True if every loop indexes a dimension of an operand, which determines its extent."""
    indices = {
        expr.position for mapping in maps for expr in mapping.results if isinstance(expr, AffineDimExpr)
    }
    return len(indices) == loops


def is_move(op: GenericOp) -> bool:
    """Return True if a nest only moves elements of its inputs, or constants."""
    return all(isinstance(inner, arith.ConstantOp | IndexOp | YieldOp) for inner in op.body.block.ops)


def reads_outputs(op: GenericOp) -> bool:
    """Return True if an iteration reads the previous value of the element that it writes."""
    return any(argument.uses for argument in op.body.block.args[len(op.inputs) :])


def terminator(op: GenericOp) -> YieldOp:
    """Return the `linalg.yield` at the end of the body."""
    last = op.body.block.last_op
    if not isinstance(last, YieldOp):
        raise LoweringError("the body of a linalg.generic does not end in linalg.yield")
    return last


def insert_nest(
    op: GenericOp,
    inputs: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
    maps: Sequence[AffineMap],
    body: Block,
) -> GenericOp:
    """Insert a nest with the same loops, but other operands and body, before `op`."""
    new = GenericOp(
        inputs,
        outputs,
        Region(body),
        [AffineMapAttr(mapping) for mapping in maps],
        op.iterator_types,
        [output.type for output in outputs],
    )
    block = op.parent_block()
    assert block is not None
    block.insert_op_before(new, op)
    return new


def keep_operands(
    op: GenericOp, inputs: Sequence[int], merged: dict[int, int], outputs: Collection[int]
) -> GenericOp:
    """Reduce a nest to some of its operands; `op` is erased.

    Args:
        op: the nest.
        inputs: positions of the inputs to keep.
        merged: for each other input that the body reads, the input that replaces it.
        outputs: positions of the outputs to keep; the others have no users.
    """
    first = len(op.inputs)
    kept_inputs = list(inputs)
    kept = [*kept_inputs, *(first + position for position in sorted(outputs))]
    end = terminator(op)
    block = op.body.detach_block(0)
    for old, other in merged.items():
        block.args[old].replace_all_uses_with(block.args[other])
    block.add_op(YieldOp(*(end.operands[position] for position in sorted(outputs))))
    block.erase_op(end)
    for position in sorted(set(range(len(block.args))).difference(kept), reverse=True):
        block.erase_arg(block.args[position])
    new = insert_nest(
        op,
        [op.inputs[position] for position in kept_inputs],
        [op.outputs[position] for position in sorted(outputs)],
        [op.maps[position] for position in kept],
        block,
    )
    for position, result in zip(sorted(outputs), new.results, strict=True):
        op.results[position].replace_all_uses_with(result)
    Rewriter.erase_op(op)
    return new


def merge_equal_inputs(op: GenericOp) -> GenericOp:
    """Merge equal inputs with equal indexing maps."""
    first: dict[Hashable, int] = {}
    merged: dict[int, int] = {}
    for position, operand in enumerate(op.inputs):
        known = first.setdefault((operand, op.maps[position]), position)
        if known != position:
            merged[position] = known
    if not merged:
        return op
    return keep_operands(op, list(first.values()), merged, range(len(op.outputs)))


OP = "lair.op"
ATTRIBUTES = "lair.attributes"
TYPES = "lair.types"
DOMAIN = "lair.domain"
WORK = "lair.work"

# Work of an iteration for each `lair.work`, by the kinds of work in `cgc.kernels.coefficients`.
ITERATION_WORK: dict[str, tuple[tuple[str, int], ...]] = {
    "simple": (("simple", 1),),
    "random": (("random", 1),),
    "scatter": (("simple", 1), ("stream", 1)),
    "sort": (("simple", 1), ("stream", 1)),
    "stages": (("simple", 2), ("stream", 1)),
}


def declaration(
    name: str, op: CirhOp, inputs: Sequence[TypeAttribute], outputs: Sequence[TypeAttribute]
) -> FuncOp:
    """Return the private function that represents an op.

    Args:
        name: of the function.
        op: the op; its source location is left out.
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
    """Return the sizes of the loops, and the work of an iteration, of an op that linalg cannot express."""
    # A sort of n elements is log2(n) merges of n elements. Ops in stages visit all elements in each of them,
    # a scatter its updates, and all other ops the largest tensor that they read or write.
    if op.TRAITS.order is Order.SORTS:
        shape = shape_of(op.operands[0])
        last = shape[-1] if shape else 1
        return (*shape, max(1, (last - 1).bit_length())), "sort"
    if op.TRAITS.order is Order.SCATTERS:
        return shape_of(op.operands[-1]), "scatter"
    if op.TRAITS.order is Order.STAGES:
        largest = max((shape_of(value) for value in (*op.results, *op.operands)), key=math.prod, default=())
        return (*largest, op.stages()), "stages"
    shapes = [shape_of(value) for value in (*op.results, *op.operands)]
    largest = max(shapes, key=math.prod, default=())
    return largest, "random" if op.TRAITS.work.random else "simple"


def dependent_loops(work: str, loops: int) -> tuple[int, ...]:
    """Return the loops of a domain whose iterations depend on each other."""
    # The merges of a sort and the elements that they compare; the stages of other ops; the updates of a
    # scatter, since several may have the same index.
    return {"sort": tuple(range(loops))[-2:], "scatter": (0,)[:loops], "stages": (loops - 1,)}.get(work, ())


def represented_op(function: FuncOp) -> CirhOp:
    """Rebuild the CIRH op that a declaration represents, with new operands."""
    name, attributes, types = (function.attributes.get(key) for key in (OP, ATTRIBUTES, TYPES))
    if not (
        isinstance(name, StringAttr)
        and isinstance(attributes, DictionaryAttr)
        and isinstance(types, FunctionType)
    ):
        raise LoweringError(
            f"@{function.sym_name.data} cannot be read: {OP}, {ATTRIBUTES} or {TYPES} is missing"
        )
    op_type = next((known for known in ALL_OPS if known.name == name.data), None)
    if op_type is None:
        raise LoweringError(f"@{function.sym_name.data}: {OP} is {name.data!r}, which is not an op of CIRH")
    return op_type.create(
        operands=Block(arg_types=types.inputs.data).args,
        result_types=types.outputs.data,
        properties=dict(attributes.data),
    )
