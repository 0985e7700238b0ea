"""The dialects of LAIR, and the one op of them that is our own version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, StringAttr
from xdsl.dialects.linalg import Linalg
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.dialects.math import Math
from xdsl.dialects.tensor import Tensor
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.parser import Parser

PARALLEL = IteratorTypeAttr(IteratorType.PARALLEL)
REDUCTION = IteratorTypeAttr(IteratorType.REDUCTION)


class GenericOp(linalg.GenericOp):
    """`linalg.generic` whose text parses with several results: xDSL 0.74 prints them and cannot read them.

    The attributes `doc` and `library_call` are not used.
    """

    @property
    def maps(self) -> tuple[AffineMap, ...]:
        """The indexing maps of inputs, then outputs."""
        return tuple(attribute.data for attribute in self.indexing_maps)

    @property
    def is_parallel(self) -> bool:
        """Whether no loop carries a value."""
        return all(kind == PARALLEL for kind in self.iterator_types)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parses the text form of MLIR."""
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


LAIR_DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Arith, Math, Tensor, _linalg())}
"""What a context needs beside builtin and func, by name."""
