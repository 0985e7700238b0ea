"""Expand a rewritten short step to one with all copies of the repeating block."""

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
from cgc.repeats.find import CopiesDifferError
from cgc.repeats.shorten import COLLECTORS, ShortStep, infer_types


class Item(NamedTuple):
    """An element of a sequence.

    Attributes:
        family: equal for all copies of an element.
        copy: index of the copy; None for an element that does not repeat.
    """

    family: int
    copy: int | None = None


def expand_items(items: Sequence[Item], count: int) -> tuple[list[Item], dict[int, int]]:
    """Insert copies in the middle of a sequence.

    A segment that is followed by the same elements of the next copies, or of the previous ones, is repeated
    for all copies in between.

    Args:
        items: the sequence, without duplicates.
        count: number of copies to insert.

    Returns:
        The longer sequence, and for each family that has grown the last copy that keeps its index.
    """
    positions = {item: index for index, item in enumerate(items)}
    last_kept: dict[int, int] = {}
    segments: dict[int, tuple[int, int]] = {}  # by the position after a segment
    start = 0
    while start < len(items):
        segment = None if items[start].family in last_kept else _find_segment(items, positions, start)
        if segment is None:
            start += 1
            continue
        length, direction = segment
        for family, copy in items[start : start + length]:
            assert copy is not None, "segments are of copies"
            last_kept[family] = copy if direction > 0 else copy - 1
        start += length
        segments[start] = segment
    expanded: list[Item] = []
    for index, (family, copy) in enumerate(items):
        if index in segments:
            length, direction = segments[index]
            families = [item.family for item in items[index - length : index]]
            offsets = range(1, count + 1) if direction > 0 else range(count, 0, -1)
            expanded += [Item(each, last_kept[each] + offset) for offset in offsets for each in families]
        is_later = copy is not None and family in last_kept and copy > last_kept[family]
        expanded.append(Item(family, copy + count if is_later and copy is not None else copy))
    return expanded, last_kept


def _find_segment(items: Sequence[Item], positions: dict[Item, int], start: int) -> tuple[int, int] | None:
    """Return (length, 1 or -1) of a segment that is followed by its next or previous copies."""
    family, copy = items[start]
    if copy is None:
        return None
    for direction in (1, -1):
        end = positions.get(Item(family, copy + direction), -1)
        length = end - start
        if 0 < length <= len(items) - end and all(
            item.copy is not None and other == (item.family, item.copy + direction)
            for item, other in zip(items[start:end], items[end : end + length], strict=True)
        ):
            return length, direction
    return None


Key = tuple[int, int | None]  # an item as a key

Values = dict[int | None, SSAValue]  # the values of a family, by copy


def expand_step(short: ModuleOp, source: ShortStep) -> ModuleOp:
    """Return the whole step, rewritten as the short one was.

    Args:
        short: `source.module` after some passes.
        source: the short step before the passes.

    Raises:
        CopiesDifferError: the copies of the short step were not rewritten in the same way.
    """
    function = graph_function(short)
    whole: FuncOp = source.whole.clone_without_regions()
    whole.attributes.update(function.attributes)
    whole.body.add_block(_Expander(_ShortItems(function, source), source).build_block())
    module: ModuleOp = short.clone_without_regions()
    module.body.add_block(Block([whole]))
    return module


class _ShortItems:
    """Ops and values of the rewritten short step as items.

    A value has another family than the op that makes it. An op that exists only in the first copy, or only in
    the last, does not repeat.

    Attributes:
        items: items of the ops, in order.
        ops: the op of each item.
        origins: item -> index of the op of the whole step that it comes from.
        block_families: family of repeating ops -> family among the repeats of the whole step.
        result_families: family of ops -> families of their results.
        returned: items of the results of the step.
    """

    def __init__(self, function: FuncOp, source: ShortStep) -> None:
        self._source = source
        self._family_ids: dict[Hashable, int] = {}
        self._values: dict[int, Item] = {}
        self.items: list[Item] = []
        self.ops: dict[Key, CirhOp] = {}
        self.origins: dict[Key, int] = {}
        self.block_families: dict[int, int] = {}
        self.result_families: dict[int, list[int]] = {}
        *ops, terminator = function.body.block.ops
        assert isinstance(terminator, ReturnOp), "a function ends in its return"
        for argument, index in zip(function.body.block.args, source.arguments, strict=True):
            family, copy = source.argument_copies.get(index, (None, 0))
            self._values[id(argument)] = (
                Item(self.family_id("argument", index))
                if family is None
                else Item(self.family_id("arguments", family), source.short_index(copy))
            )
        self._add_ops(ops)
        self.returned = [self._values[id(operand)] for operand in terminator.operands]

    def family_id(self, *key: Hashable) -> int:
        """Return the family with a key."""
        return self._family_ids.setdefault(key, len(self._family_ids))

    def operands(self, item: Key) -> list[Item]:
        """Return the items that an op reads."""
        return [self._values[id(operand)] for operand in self.ops[item].operand_values]

    def _add_ops(self, ops: Sequence[object]) -> None:
        """Add the items of ops and of their results."""
        counts: Counter[int] = Counter()  # by origin: a pass may make several ops of one
        found: list[tuple[CirhOp, int, tuple[int, int], int | None]] = []
        for op in ops:
            name = op.attributes.get(NODE_NAME) if isinstance(op, CirhOp) else None
            if not isinstance(op, CirhOp) or not isinstance(name, StringAttr):
                raise CopiesDifferError("an op has no origin")
            origin = int(name.data)
            family, copy = self._source.op_copies.get(origin, (None, None))
            found.append((op, origin, (-1 if family is None else family, counts[origin]), copy))
            counts[origin] += 1
        copies_of: dict[tuple[int, int], set[int]] = defaultdict(set)
        for _, _, key, copy in found:
            if copy is not None:
                copies_of[key].add(copy)
        first_or_last = ({0}, {self._source.copies - 1})
        for op, origin, key, copy in found:
            if copy is not None and len(copies_of[key]) == self._source.copies:
                item = Item(self.family_id("ops", *key), copy)
                self.block_families[item.family] = key[0]
            elif copy is None or copies_of[key] in first_or_last:
                item = Item(self.family_id("op", origin, key[1]))
            else:
                raise CopiesDifferError(f"{op.name} is in some copies and not in others")
            self.items.append(item)
            self.ops[item], self.origins[item] = op, origin
            results = self.result_families.get(item.family)
            if results is None:
                results = [self.family_id("result", item.family, index) for index in range(len(op.results))]
                self.result_families[item.family] = results
            for family, result in zip(results, op.results, strict=False):
                self._values[id(result)] = Item(family, item.copy)


class _Source(NamedTuple):
    """Source of an operand in all copies: the value of the copy at a distance, or one shared value.

    A shared value has its index in the whole step.
    """

    value: Item
    distance: int | None


class _Expander:
    """Builds the whole step from the items of the rewritten short step."""

    def __init__(self, rewritten: _ShortItems, source: ShortStep) -> None:
        self._rewritten, self._source, self._omitted = rewritten, source, source.num_omitted
        self._items, self._last_kept = expand_items(rewritten.items, self._omitted)
        self._sources: dict[int, list[_Source]] = {}
        for item, op in zip(rewritten.items, rewritten.ops.values(), strict=True):
            if item.copy is None:
                continue
            if item.family not in self._last_kept:
                raise CopiesDifferError(f"copies of {op.name} are not in the same order")
            if item.copy == 0:
                self._sources[item.family] = self._infer_sources(item.family)
        self._values: dict[int, Values] = defaultdict(dict)
        # Family of ops -> for each operand of a copy in the middle its values and its distance.
        self._reads: dict[int, list[tuple[Values, int | None]]] = {}

    def build_block(self) -> Block:
        """Build the body of the whole step."""
        source = self._source
        block = Block(arg_types=source.whole.body.block.arg_types)
        for index, argument in enumerate(block.args):
            family, copy = source.argument_copies.get(index, (None, None))
            key = ("argument", index) if family is None else ("arguments", family)
            self._values[self._rewritten.family_id(*key)][copy] = argument
        for item in self._items:
            if item.copy is None:
                op = self._rewritten.ops[item]
                before = source.step.ops[self._rewritten.origins[item]]
                operands = [self._value(value) for value in self._operands_of_unique(item, op)]
                types = infer_types(op, operands)
                block.add_op(self._build_op(item, op, before, operands, types, op.properties))
            else:
                block.add_op(self._build_copy(item, item.copy))
        block.add_op(ReturnOp.create(operands=list(map(self._value, self._result_items()))))
        return block

    def _value(self, item: Item) -> SSAValue:
        return _require_value(self._values[item.family], item.copy)

    def _build_copy(self, item: Item, copy: int) -> CirhOp:
        """Build an op of a copy."""
        family, last = item.family, self._last_kept[item.family]
        model: Key
        if last < copy <= last + self._omitted:
            model = family, 0
            operands = self._operands_of_copy(family, copy)
        else:
            short = copy if copy <= last else copy - self._omitted
            model = family, short
            read = self._resolve_operands(self._sources[family], self._rewritten.operands(model), copy, short)
            operands = list(map(self._value, read))
        op = self._rewritten.ops[model]
        before = self._source.step.ops[
            self._source.repeats.ops.item(self._rewritten.block_families[family], copy)
        ]
        properties = op.properties
        if OP_SEED in properties and isinstance(op, SeededRandomOp):
            original = self._source.step.ops[self._rewritten.origins[model]]
            seed = op.properties[OP_SEED]
            if not isinstance(before, SeededRandomOp) or original.properties[OP_SEED] != seed:
                raise CopiesDifferError("an op draws the random numbers of another op than in the program")
            properties = properties | {OP_SEED: before.properties[OP_SEED]}
        types = [result.type for result in op.results]
        return self._build_op(item, op, before, operands, types, properties)

    def _operands_of_copy(self, family: int, copy: int) -> list[SSAValue]:
        """Return the operands of a copy in the middle."""
        reads = self._reads.get(family)
        if reads is None:
            reads = self._reads[family] = [
                ({None: self._value(value)}, None)
                if distance is None
                else (self._values[value.family], distance)
                for value, distance in self._sources[family]
            ]
        return [
            _require_value(values, None if distance is None else copy + distance)
            for values, distance in reads
        ]

    def _build_op(
        self,
        item: Item,
        op: CirhOp,
        before: CirhOp,
        operands: Sequence[SSAValue],
        types: Sequence[Attribute],
        properties: dict[str, Attribute],
    ) -> CirhOp:
        """Build an op with the origin of `before`."""
        attributes = before.attributes
        if not attributes.keys() <= ORIGIN or len(op.attributes) > 1:  # one is the op's name
            attributes = {name: value for name, value in attributes.items() if name in ORIGIN}
            attributes |= {name: value for name, value in op.attributes.items() if name not in ORIGIN}
        built = op.create_unchecked(operands, types, properties, attributes)
        for family, result in zip(self._rewritten.result_families[item.family], built.results, strict=True):
            self._values[family][item.copy] = result
        return built

    def _operands_of_unique(self, item: Item, op: CirhOp) -> list[Item]:
        """Return the operands of an op that does not repeat, as items of the whole step."""
        values = self._rewritten.operands(item)
        if isinstance(op, COLLECTORS):
            if len(set(values)) < len(values):
                before = self._source.step.ops[self._rewritten.origins[item]]
                if type(before) is not type(op) or len(before.operands) != len(values):
                    raise CopiesDifferError(f"{op.name} reads values of copies that became one")
                return list(map(self._to_whole, values))
            expanded, last_kept = expand_items(values, self._omitted)
            return [value if value.family in last_kept else self._to_whole(value) for value in expanded]
        return [self._to_whole(value) for value in values]

    def _resolve_operands(
        self, sources: Sequence[_Source], own: Sequence[Item], copy: int, short: int
    ) -> list[Item]:
        """Return the operands of a copy.

        Args:
            sources: the source of each operand.
            own: operands of the copy of the short step that serves as the model.
            copy: index of the copy in the whole step.
            short: index of the model in the short step.
        """
        return [
            source.value
            if source.distance is None
            else Item(source.value.family, copy + source.distance)
            if 0 <= short + source.distance < self._source.copies
            else self._to_whole(value)
            for source, value in zip(sources, own, strict=True)
        ]

    def _to_whole(self, value: Item) -> Item:
        """Return the item in the whole step of a value that is not of a copy in the middle."""
        family, copy = value
        if copy is None or copy == 0:
            return value
        if copy < self._source.copies - 1:
            raise CopiesDifferError("an op outside of the copies reads one in the middle")
        return Item(family, copy + self._omitted)

    def _infer_sources(self, family: int) -> list[_Source]:
        """Infer the sources of the operands of repeating ops, whose copies must be equal."""
        copies = [Item(family, copy) for copy in range(self._source.copies)]
        first, *others = (self._rewritten.ops[item] for item in copies)
        for op in others:
            if (
                type(op) is not type(first)
                or shared_attributes(op) != shared_attributes(first)
                or op.result_types != first.result_types
            ):
                raise CopiesDifferError(f"copies of {first.name} were rewritten differently")
        found = [_infer_source(values) for values in zip(*map(self._rewritten.operands, copies), strict=True)]
        return [
            source if source.distance is not None else _Source(self._to_whole(source.value), None)
            for source in found
        ]

    def _result_items(self) -> list[Item]:
        """Return the results of the whole step, as items."""
        source, kept_copies = self._source, self._source.kept_copies
        known = dict(zip(source.results, self._rewritten.returned, strict=True))
        found: dict[int, Item] = {}
        for row in source.repeats.arguments:
            replacements = [source.replacements[argument] for argument in row.tolist()]
            results = [index for index in replacements if index is not None]
            if not results:
                continue
            own = [known[results[copy]] for copy in kept_copies]
            inferred = _infer_source(own)
            if inferred.distance is None:
                inferred = _Source(self._to_whole(inferred.value), None)
            for copy, result in enumerate(results):
                if copy in kept_copies:
                    short = kept_copies.index(copy)
                    (found[result],) = self._resolve_operands([inferred], [own[short]], copy, short)
                else:
                    value, distance = inferred
                    found[result] = value if distance is None else Item(value.family, copy + distance)
        for result, value in known.items():
            if result not in found:
                found[result] = self._to_whole(value)
        return [found[result] for result in range(len(source.whole.function_type.outputs))]


def _require_value(values: Values, copy: int | None) -> SSAValue:
    value = values.get(copy)
    if value is None:
        raise CopiesDifferError("a copy reads a value that is missing or comes later")
    return value


def _infer_source(values: Sequence[Item]) -> _Source:
    """Infer the source of an operand in all copies from its values in the copies of the short step.

    Raises:
        CopiesDifferError: these values follow no pattern.
    """
    first = values[0]
    if all(value == first for value in values):
        return _Source(first, None)
    copies = range(len(values))
    for reader, value in enumerate(values):
        if value.copy is None:
            continue
        distance = value.copy - reader
        if all(values[i] == (value.family, i + distance) for i in copies if i + distance in copies):
            return _Source(value, distance)
    raise CopiesDifferError("copies read different values")
