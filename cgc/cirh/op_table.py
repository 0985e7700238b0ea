"""The ops of a step as arrays of integers, for finding repeats and comparing modules."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from typing import cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from cgc.cirh.base import ORIGIN, CirhOp
from cgc.cirh.interface import graph_function
from cgc.cirh.random import SeededRandomOp
from cgc.cirh.text import CanonicalPrinter, canonical_text

# The only attribute in which copies of an op differ: the seed of random numbers.
OP_SEED = "op_seed"


class OpLabels:
    """Labels of ops: equal for equal classes, attributes and types, whatever the origin of the ops.

    The ops must live as long as this object.
    """

    def __init__(self) -> None:
        # Hashing attributes takes long. Equal ones are usually one object and are compared by identity first.
        self._by_id: dict[tuple[object, ...], int] = {}
        self._by_value: dict[tuple[object, ...], int] = {}

    def label(self, op: CirhOp, types: Iterable[int]) -> int:
        """Return the label of an op.

        Args:
            op: the op.
            types: identities of the types of its operands, followed by those of its results.
        """
        own, others = op.properties, op.attributes
        key = (type(op), len(op.results), *own, *map(id, own.values()), *types)
        if not others.keys() <= ORIGIN:
            key += tuple((name, id(value)) for name, value in others.items() if name not in ORIGIN)
        found = self._by_id.get(key)
        if found is None:
            found = self._by_id[key] = self._by_value.setdefault(_essence(op), len(self._by_value))
        return found


def shared_attributes(op: CirhOp) -> dict[str, Attribute]:
    """Return the attributes that copies of an op have in common: not the seed, nor the origin."""
    own: dict[str, Attribute] = dict(op.properties)
    if isinstance(op, SeededRandomOp):
        del own[OP_SEED]
    return own | {name: value for name, value in op.attributes.items() if name not in ORIGIN}


def _essence(op: CirhOp) -> tuple[object, ...]:
    return (
        type(op),
        frozenset(shared_attributes(op).items()),
        tuple(operand.type for operand in op.operand_values),
        tuple(result.type for result in op.results),
    )


Ints = NDArray[np.int64]


@dataclass(frozen=True)
class OpTable:
    """The ops of a function by index, and its values by number: arguments, then results in order.

    Attributes:
        ops: the ops without the terminator.
        labels: label of each op, equal for ops that may be the same op of two copies of a block.
        first_result: number of the first result of each op, with one more entry at the end.
        first_read: position in `read` of the first operand of each op, with one more entry at the end.
        read: the operands of all ops, concatenated.
        returned: the values that the function returns.
        types: type of each value.
    """

    ops: Sequence[CirhOp]
    labels: Ints
    first_result: Ints
    first_read: Ints
    read: Ints
    returned: Sequence[int]
    types: Sequence[Attribute]

    @property
    def arguments(self) -> int:
        """Number of values that are arguments."""
        return int(self.first_result[0])

    @cached_property
    def producer(self) -> Ints:
        """The op that makes each value; -1 for an argument."""
        made = np.repeat(np.arange(len(self.ops)), np.diff(self.first_result))
        return np.concatenate((np.full(self.arguments, -1), made))

    def operands(self, op: int) -> list[int]:
        """Return the values that an op reads."""
        found: list[int] = self.read[self.first_read[op] : self.first_read[op + 1]].tolist()
        return found

    def results(self, op: int) -> range:
        """Return the values that an op makes."""
        return range(self.first_result[op], self.first_result[op + 1])

    def users(self, value: int) -> list[int]:
        """Return the ops that read a value, ascending; twice for one that reads it twice."""
        places, values, readers = self._users
        first, end = np.searchsorted(values, (value, value + 1))
        found: list[int] = readers[places[first:end]].tolist()
        return found

    @cached_property
    def _users(self) -> tuple[Ints, Ints, Ints]:
        """Positions in `read` ordered by value, their values, and the reader of each position."""
        order = np.argsort(self.read, kind="stable")
        readers = np.repeat(np.arange(len(self.ops)), np.diff(self.first_read))
        return order, self.read[order], readers


def tabulate_ops(function: FuncOp) -> OpTable | None:
    """Read a function; None if it has ops of other dialects, or reads a value before it is made."""
    try:
        return _scan(function, OpLabels())
    except KeyError:  # a value that no earlier op makes
        return None


def _scan(function: FuncOp, known: OpLabels) -> OpTable | None:
    block = function.body.block
    label = known.label
    number = {id(value): index for index, value in enumerate(block.args)}
    types: list[Attribute] = [value.type for value in block.args]
    labels: list[int] = []
    read: list[int] = []
    first_result, first_read = [len(number)], [0]
    last = block.last_op
    ops = cast(list[CirhOp], [op for op in block.ops if op is not last])
    if not all(issubclass(kind, CirhOp) for kind in set(map(type, ops))):
        return None
    for op in ops:
        own = [number[id(value)] for value in op.operand_values]
        kinds = [types[value] for value in own]
        for result in op.results:
            number[id(result)] = len(types)
            types.append(result.type)
            kinds.append(result.type)
        labels.append(label(op, map(id, kinds)))
        read += own
        first_result.append(len(types))
        first_read.append(len(read))
    returned = [number[id(value)] for value in last.operands] if last is not None else []
    return OpTable(
        ops,
        labels=np.array(labels, np.int64),
        first_result=np.array(first_result, np.int64),
        first_read=np.array(first_read, np.int64),
        read=np.array(read, np.int64),
        returned=returned,
        types=types,
    )


def are_equal(first: FuncOp, second: FuncOp) -> bool:
    """Return whether two functions are equal, including names and seeds; False for ops of other dialects."""
    labels = OpLabels()
    one, other = (_scan(function, labels) for function in (first, second))
    if one is None or other is None:
        return False
    tables = (
        (found.labels, found.first_result, found.first_read, found.read, found.returned)
        for found in (one, other)
    )
    return all(map(np.array_equal, *tables)) and all(
        a.properties == b.properties and a.attributes == b.attributes
        for a, b in zip(one.ops, other.ops, strict=True)
    )


def module_digest(module: ModuleOp, scanned: OpTable | None) -> str:
    """Return a digest of 64 hex digits, equal exactly for modules of equal canonical text.

    Args:
        module: a step.
        scanned: its function; None if that has ops of other dialects.
    """
    digest = hashlib.sha256()
    if scanned is None:
        digest.update(canonical_text(module).encode())
        return digest.hexdigest()
    for line in (*_signature(module), *_kinds(scanned)):
        digest.update(line.encode() + b"\n")
    seeded = {kind for kind in set(map(type, scanned.ops)) if issubclass(kind, SeededRandomOp)}
    seeds = [op.op_seed for op in scanned.ops if type(op) in seeded and isinstance(op, SeededRandomOp)]
    tables = (scanned.labels, scanned.first_result, scanned.first_read, scanned.read, scanned.returned, seeds)
    for table in tables:
        digest.update(np.asarray(table, "<i8").tobytes() + b"\n")
    return digest.hexdigest()


def _signature(module: ModuleOp) -> Iterator[str]:
    function = graph_function(module)
    printer = CanonicalPrinter()
    for attributes in (module.attributes, function.attributes, function.properties):
        for name, attribute in sorted(attributes.items()):
            yield name
            yield from _lines(attribute, printer)


def _lines(attribute: Attribute, printer: CanonicalPrinter) -> Iterator[str]:
    """Yield the text of an attribute."""
    # xDSL takes long for the hundreds of types and names of a function.
    match attribute:
        case FunctionType():
            for types in (attribute.inputs.data, attribute.outputs.data):
                yield ", ".join(map(printer.attribute_text, types))
        case ArrayAttr() if all(isinstance(item, DictionaryAttr) for item in attribute.data):
            yield from (printer.join_attributes(dict(sorted(item.data.items()))) for item in attribute.data)
        case _:
            yield printer.attribute_text(attribute)


def _kinds(scanned: OpTable) -> Iterator[str]:
    """Return one op of each label, whose seed may be another one's."""
    _, first = np.unique(scanned.labels, return_index=True)
    for place in first.tolist():
        out = StringIO()
        CanonicalPrinter(stream=out).print_op(scanned.ops[place])
        yield out.getvalue()
