"""Expand a rewritten step with few copies of a block to one with all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, SSAValue

from cgc.cirh.base import NODE_NAME, ORIGIN, CirhOp
from cgc.cirh.interface import graph_function
from cgc.cirh.op_table import OP_SEED, shared_attributes
from cgc.cirh.random import SeededRandomOp
from cgc.repeats.find import NotFoldedError
from cgc.repeats.shorten import COLLECTORS, Folded, retyped


class Item(NamedTuple):
    """One of a sequence.

    Attributes:
        family: equal for the copies of something.
        copy: which copy; None for what is no copy.
    """

    family: int
    copy: int | None = None


def expanded(items: Sequence[Item], more: int) -> tuple[list[Item], dict[int, int]]:
    """A sequence with more copies in the middle.

    A stretch that is followed by the same of the next copies, or of the copies before, is repeated with all
    that are between.

    Args:
        items: each at most once.
        more: how many copies come in.

    Returns:
        The longer sequence, and of each family that has grown the last copy that keeps its number.
    """
    place = {item: index for index, item in enumerate(items)}
    kept: dict[int, int] = {}
    stretches: dict[int, tuple[int, int]] = {}
    index = 0
    while index < len(items):
        found = None if items[index].family in kept else _stretch(items, place, index)
        if found is None:
            index += 1
            continue
        length, way = found
        for family, copy in items[index : index + length]:
            assert copy is not None, "stretches are of copies"
            kept[family] = copy if way > 0 else copy - 1
        stretches[index + length] = found
        index += length
    made: list[Item] = []
    for index, (family, copy) in enumerate(items):
        if index in stretches:
            made += _between(items, index, *stretches[index], more, kept)
        is_later = copy is not None and family in kept and copy > kept[family]
        made.append(Item(family, copy + more if is_later and copy is not None else copy))
    return made, kept


def _stretch(items: Sequence[Item], place: dict[Item, int], start: int) -> tuple[int, int] | None:
    """(length, 1 or -1) of the stretch at a place that is followed by the same of the next or last copies."""
    family, copy = items[start]
    if copy is None:
        return None
    for way in (1, -1):
        after = place.get(Item(family, copy + way), -1)
        length = after - start
        if 0 < length <= len(items) - after and all(
            one.copy is not None and other == (one.family, one.copy + way)
            for one, other in zip(items[start:after], items[after : after + length], strict=True)
        ):
            return length, way
    return None


def _between(
    items: Sequence[Item], end: int, length: int, way: int, more: int, kept: dict[int, int]
) -> list[Item]:
    """The copies that come in behind a stretch."""
    families = [item.family for item in items[end - length : end]]
    steps = range(1, more + 1) if way > 0 else range(more, 0, -1)
    return [Item(family, kept[family] + step) for step in steps for family in families]


Key = tuple[int, int | None]
"""An item, which is one."""

Values = dict[int | None, SSAValue]
"""The values of a family by copy."""


def unfolded(short: ModuleOp, source: Folded) -> ModuleOp:
    """The whole step rewritten as the short one was.

    Args:
        short: `source.module` after some passes.
        source: what it was made of.

    Raises:
        NotFoldedError: the copies that are left were not rewritten alike.
    """
    function = graph_function(short)
    whole: FuncOp = source.whole.clone_without_regions()
    whole.attributes.update(function.attributes)
    whole.body.add_block(_Unfolder(_Rewritten(function, source), source).block())
    module: ModuleOp = short.clone_without_regions()
    module.body.add_block(Block([whole]))
    return module


class _Rewritten:
    """The short step: ops and values as items.

    The family of a value is another one than that of the op that makes it. What there is in the first copy
    alone, or in the last, is no copy.

    Attributes:
        items: of the ops, in order.
        ops: by item.
        places: of what op of the whole step an op comes from.
        blocks: by family of ops that are copies, the family among the repeats of the whole step.
        results: by family of ops, the families of their results.
        returned: the values of the results.
    """

    def __init__(self, function: FuncOp, source: Folded) -> None:
        self._source = source
        self._numbers: dict[Hashable, int] = {}
        self._values: dict[int, Item] = {}
        self.items: list[Item] = []
        self.ops: dict[Key, CirhOp] = {}
        self.places: dict[Key, int] = {}
        self.blocks: dict[int, int] = {}
        self.results: dict[int, list[int]] = {}
        *ops, terminator = function.body.block.ops
        assert isinstance(terminator, ReturnOp), "a function ends in its return"
        for argument, number in zip(function.body.block.args, source.arguments, strict=True):
            self._values[id(argument)] = self.argument(number)
        self._name_ops(ops)
        self.returned = [self._values[id(operand)] for operand in terminator.operands]

    def number(self, *key: Hashable) -> int:
        """The number of a family."""
        return self._numbers.setdefault(key, len(self._numbers))

    def argument(self, number: int) -> Item:
        """The item of an argument."""
        family, copy = self._source.argument_copies.get(number, (None, 0))
        if family is None:
            return Item(self.number("argument", number))
        return Item(self.number("arguments", family), self._source.left(copy))

    def operands(self, item: Key) -> list[Item]:
        """What an op reads."""
        return [self._values[id(operand)] for operand in self.ops[item].operand_values]

    def _name_ops(self, ops: Sequence[object]) -> None:
        made: Counter[int] = Counter()
        found: list[tuple[CirhOp, int, tuple[int, int], int | None]] = []
        for op in ops:
            name = op.attributes.get(NODE_NAME) if isinstance(op, CirhOp) else None
            if not isinstance(op, CirhOp) or not isinstance(name, StringAttr):
                raise NotFoldedError("an op does not say where it comes from")
            place = int(name.data)
            family, copy = self._source.op_copies.get(place, (None, None))
            found.append((op, place, (-1 if family is None else family, made[place]), copy))
            made[place] += 1
        copies_of: dict[tuple[int, int], set[int]] = defaultdict(set)
        for _, _, key, copy in found:
            if copy is not None:
                copies_of[key].add(copy)
        kept, ends = self._source.kept, ({0}, {self._source.kept - 1})
        for op, place, key, copy in found:
            if copy is not None and len(copies_of[key]) == kept:
                item = Item(self.number("ops", *key), copy)
                self.blocks[item.family] = key[0]
            elif copy is None or copies_of[key] in ends:
                item = Item(self.number("op", place, key[1]))
            else:
                raise NotFoldedError(f"{op.name} is in some copies and not in others")
            self.items.append(item)
            self.ops[item], self.places[item] = op, place
            results = self.results.get(item.family)
            if results is None:
                results = [self.number("result", item.family, index) for index in range(len(op.results))]
                self.results[item.family] = results
            for family, result in zip(results, op.results, strict=False):
                self._values[id(result)] = Item(family, item.copy)


class _Source(NamedTuple):
    """What an operand is in all copies: of the copy at a distance, or, without one, the same value.

    That one has its number in the whole step.
    """

    value: Item
    distance: int | None


class _Unfolder:
    def __init__(self, rewritten: _Rewritten, source: Folded) -> None:
        self._rewritten, self._source, self._more = rewritten, source, source.left_out
        self._order, self._kept = expanded(rewritten.items, self._more)
        self._sources: dict[int, list[_Source]] = {}
        for item, op in zip(rewritten.items, rewritten.ops.values(), strict=True):
            if item.copy is None:
                continue
            if item.family not in self._kept:
                raise NotFoldedError(f"copies of {op.name} do not follow each other alike")
            if item.copy == 0:
                self._sources[item.family] = self._found_sources(item.family)
        self._values: dict[int, Values] = defaultdict(dict)
        self._reads: dict[int, list[tuple[Values, int | None]]] = {}
        """Of families of ops, for each operand of a copy in the middle its values and how far it is."""

    def block(self) -> Block:
        """The body of the whole step."""
        source = self._source
        block = Block(arg_types=source.whole.body.block.arg_types)
        for number, argument in enumerate(block.args):
            family, copy = source.argument_copies.get(number, (None, None))
            key = ("argument", number) if family is None else ("arguments", family)
            self._values[self._rewritten.number(*key)][copy] = argument
        for item in self._order:
            block.add_op(self._whole(item) if item.copy is None else self._copy(item, item.copy))
        block.add_op(ReturnOp.create(operands=list(map(self._value, self._returned()))))
        return block

    def _value(self, item: Item) -> SSAValue:
        return _found(self._values[item.family], item.copy)

    def _whole(self, item: Item) -> CirhOp:
        """An op that is no copy."""
        op = self._rewritten.ops[item]
        operands = [self._value(value) for value in self._read(item, op)]
        before = self._source.step.ops[self._rewritten.places[item]]
        return self._made(item, op, before, operands, retyped(op, operands), op.properties)

    def _copy(self, item: Item, copy: int) -> CirhOp:
        """An op of a copy."""
        family, last = item.family, self._kept[item.family]
        like: Key
        if last < copy <= last + self._more:
            like = family, 0
            operands = self._operands(family, copy)
        else:
            short = copy if copy <= last else copy - self._more
            like = family, short
            read = self._resolved(self._sources[family], self._rewritten.operands(like), copy, short)
            operands = list(map(self._value, read))
        op = self._rewritten.ops[like]
        before = self._source.step.ops[self._source.repeats.ops.item(self._rewritten.blocks[family], copy)]
        properties = op.properties
        if OP_SEED in properties and isinstance(op, SeededRandomOp):
            first = self._source.step.ops[self._rewritten.places[like]]
            if not isinstance(before, SeededRandomOp) or first.properties[OP_SEED] != op.properties[OP_SEED]:
                raise NotFoldedError("random numbers of another op than the program's")
            properties = properties | {OP_SEED: before.properties[OP_SEED]}
        types = [result.type for result in op.results]
        return self._made(item, op, before, operands, types, properties)

    def _operands(self, family: int, copy: int) -> list[SSAValue]:
        """What a copy in the middle reads."""
        reads = self._reads.get(family)
        if reads is None:
            reads = self._reads[family] = [
                ({None: self._value(value)}, None)
                if distance is None
                else (self._values[value.family], distance)
                for value, distance in self._sources[family]
            ]
        return [_found(values, None if distance is None else copy + distance) for values, distance in reads]

    def _made(
        self,
        item: Item,
        op: CirhOp,
        before: CirhOp,
        operands: Sequence[SSAValue],
        types: Sequence[Attribute],
        properties: dict[str, Attribute],
    ) -> CirhOp:
        """An op that comes from where `before` does."""
        attributes = before.attributes
        if not attributes.keys() <= ORIGIN or len(op.attributes) > 1:  # one is the op's name
            attributes = {name: value for name, value in attributes.items() if name in ORIGIN}
            attributes |= {name: value for name, value in op.attributes.items() if name not in ORIGIN}
        made = op.made_of(operands, types, properties, attributes)
        for family, result in zip(self._rewritten.results[item.family], made.results, strict=True):
            self._values[family][item.copy] = result
        return made

    def _read(self, item: Item, op: CirhOp) -> list[Item]:
        """What an op of the whole step reads that is no copy."""
        values = self._rewritten.operands(item)
        if isinstance(op, COLLECTORS):
            if len(set(values)) < len(values):
                before = self._source.step.ops[self._rewritten.places[item]]
                if type(before) is not type(op) or len(before.operands) != len(values):
                    raise NotFoldedError(f"{op.name} reads values of copies that became one")
                return list(map(self._end, values))
            longer, kept = expanded(values, self._more)
            return [value if value.family in kept else self._end(value) for value in longer]
        return [self._end(value) for value in values]

    def _resolved(self, sources: Sequence[_Source], own: Sequence[Item], copy: int, short: int) -> list[Item]:
        """The operands of a copy.

        Args:
            sources: what each is in all copies.
            own: what the copy of the short step reads that it is made like.
            copy: which copy of the whole step.
            short: which of the short step it is made like.
        """
        return [
            source.value
            if source.distance is None
            else Item(source.value.family, copy + source.distance)
            if 0 <= short + source.distance < self._source.kept
            else self._end(value)
            for source, value in zip(sources, own, strict=True)
        ]

    def _end(self, value: Item) -> Item:
        """A value that is no copy, or one of the first or the last copy."""
        family, copy = value
        if copy is None or copy == 0:
            return value
        if copy < self._source.kept - 1:
            raise NotFoldedError("something reads one copy in the middle")
        return Item(family, copy + self._more)

    def _found_sources(self, family: int) -> list[_Source]:
        copies = [Item(family, copy) for copy in range(self._source.kept)]
        first, *others = (self._rewritten.ops[item] for item in copies)
        if not all(_are_equal(first, op) for op in others):
            raise NotFoldedError(f"copies of {first.name} were rewritten differently")
        found = [_source(values) for values in zip(*map(self._rewritten.operands, copies), strict=True)]
        return [
            source if source.distance is not None else _Source(self._end(source.value), None)
            for source in found
        ]

    def _returned(self) -> list[Item]:
        """What the whole step returns."""
        source, stay = self._source, self._source.stay
        known = dict(zip(source.results, self._rewritten.returned, strict=True))
        found: dict[int, Item] = {}
        for row in source.repeats.arguments:
            replaced = [source.replaced[number] for number in row.tolist()]
            results = [place for place in replaced if place is not None]
            if not results:
                continue
            own = [known[results[copy]] for copy in stay]
            kind = _source(own)
            if kind.distance is None:
                kind = _Source(self._end(kind.value), None)
            for copy, place in enumerate(results):
                if copy in stay:
                    short = stay.index(copy)
                    (found[place],) = self._resolved([kind], [own[short]], copy, short)
                else:
                    value, distance = kind
                    found[place] = value if distance is None else Item(value.family, copy + distance)
        for place, value in known.items():
            if place not in found:
                found[place] = self._end(value)
        return [found[place] for place in range(len(source.whole.function_type.outputs))]


def _found(values: Values, copy: int | None) -> SSAValue:
    value = values.get(copy)
    if value is None:
        raise NotFoldedError("a copy reads what is not there, or comes later")
    return value


def _are_equal(op: CirhOp, other: CirhOp) -> bool:
    """Whether two ops may be copies of each other."""
    return (
        type(op) is type(other)
        and shared_attributes(op) == shared_attributes(other)
        and op.result_types == other.result_types
    )


def _source(values: Sequence[Item]) -> _Source:
    """What an operand is in all copies, from what it is in those that are left, with numbers of those.

    Raises:
        NotFoldedError: that says nothing of the others.
    """
    first = values[0]
    if all(value == first for value in values):
        return _Source(first, None)
    kept = range(len(values))
    for reader, value in enumerate(values):
        if value.copy is None:
            continue
        distance = value.copy - reader
        if all(values[i] == (value.family, i + distance) for i in kept if i + distance in kept):
            return _Source(value, distance)
    raise NotFoldedError("copies read different values")
