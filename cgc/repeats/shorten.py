"""A step without most copies of the block that repeats in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.utils.exceptions import VerifyException

from cgc.cirh.base import NODE_NAME, ORIGIN, CirhOp, text_attr
from cgc.cirh.interface import ALIASING_OUTPUT, graph_function, named_function, plain
from cgc.cirh.op_table import Scan, scan
from cgc.cirh.ops import ConcatOp, L2NormOp
from cgc.errors import InvalidOpError
from cgc.repeats.find import NotFoldedError, Read, Repeats, find_repeats

LEFT_OUT_FROM = 1
"""Copies are left out behind this many."""

LEAST_GAIN = 1.25
"""To leave copies out and put them in again takes a sixth of the time that passes take on the whole step."""

COLLECTORS = (ConcatOp, L2NormOp)
"""Ops that take any number of values: of all copies, for instance."""


@dataclass(frozen=True)
class Folded:
    """A step without most copies.

    Attributes:
        module: what is left. The name of each op is its place in the whole step, nothing else says where it
            comes from.
        whole: the function of the whole step.
        step: the same as integers.
        repeats: what repeats in it.
        kept: how many copies are left.
        results: of the results that are left their places among all.
        arguments: of the arguments that are left their places among all.
        replaced: of all arguments the places of the results that replace them, if any do.
    """

    module: ModuleOp
    whole: FuncOp
    step: Scan
    repeats: Repeats
    kept: int
    results: Sequence[int]
    arguments: Sequence[int]
    replaced: Sequence[int | None]

    @property
    def left_out(self) -> int:
        """How many copies are left out."""
        return self.repeats.copies - self.kept

    @property
    def stay(self) -> list[int]:
        """The copies that are left."""
        return [*range(LEFT_OUT_FROM), *range(LEFT_OUT_FROM + self.left_out, self.repeats.copies)]

    def left(self, copy: int) -> int:
        """The number of a copy that is left among those."""
        return copy if copy < LEFT_OUT_FROM else copy - self.left_out

    def again(self) -> Folded:
        """The same once more, for passes that change what is left."""
        return _Folder(self.module, self.whole, self.step, self.repeats, self.kept).folded()

    def shorter(self) -> Folded:
        """What is left without one more copy, as made of what is left."""
        out = self.repeats.ops[:, LEFT_OUT_FROM : LEFT_OUT_FROM + self.left_out]
        places = np.delete(np.arange(len(self.step.ops)), out.ravel())
        stay, repeats = self.stay, self.repeats
        ops = np.searchsorted(places, repeats.ops[:, stay])
        arguments = np.searchsorted(np.array(self.arguments), repeats.arguments[:, stay])
        function = graph_function(self.module)
        step = scan(function)
        assert step is not None, "it was made of ops of CIRH"
        left = Repeats(ops, arguments, repeats.reads)
        return _Folder(self.module, function, step, left, self.kept - 1).folded()

    @cached_property
    def op_copies(self) -> dict[int, tuple[int, int]]:
        """Place of an op of a copy that is left -> (family, number of the copy among those)."""
        table = self.repeats.ops[:, self.stay].tolist()
        return {place: (family, copy) for family, row in enumerate(table) for copy, place in enumerate(row)}

    @cached_property
    def argument_copies(self) -> dict[int, tuple[int, int]]:
        """Place of an argument of any copy -> (family, copy)."""
        table = self.repeats.arguments.tolist()
        return {place: (family, copy) for family, row in enumerate(table) for copy, place in enumerate(row)}


def folded(module: ModuleOp, step: Scan, kept: int) -> Folded | None:
    """The step without most copies of a block; None where nothing repeats so often that it is worth it.

    Args:
        module: the step; it is not changed.
        step: the same as integers.
        kept: so many copies stay, 2 or more.

    Raises:
        NotFoldedError: something that is no copy reads a copy in the middle.
    """
    repeats = find_repeats(step)
    if repeats is None or not _is_worth_it(repeats, len(step.ops), kept):
        return None
    return _Folder(module, graph_function(module), step, repeats, kept).folded()


def _is_worth_it(repeats: Repeats, ops: int, kept: int) -> bool:
    """Whether what is left, and that without one more copy, is much less than the whole."""
    of_a_copy = len(repeats.ops)
    left = ops - of_a_copy * (repeats.copies - kept)
    return ops >= LEAST_GAIN * (2 * left - of_a_copy)


def retyped(op: CirhOp, operands: Sequence[SSAValue]) -> Sequence[Attribute]:
    """The types of the results of an op that reads other values in the place of its own.

    Raises:
        NotFoldedError: it cannot read them.
    """
    if [value.type for value in op.operand_values] == [value.type for value in operands]:
        return [result.type for result in op.results]
    try:
        return type(op).inferred(operands, op.properties)
    except (InvalidOpError, VerifyException, ValueError) as error:
        raise NotFoldedError(f"{op.name} depends on the number of copies: {error}") from None


class _Folder:
    def __init__(self, module: ModuleOp, whole: FuncOp, step: Scan, repeats: Repeats, kept: int) -> None:
        self._module, self._whole, self._step, self._repeats = module, whole, step, repeats
        self._kept = kept
        self._out = range(LEFT_OUT_FROM, LEFT_OUT_FROM + repeats.copies - kept)
        self._stay = [copy for copy in range(repeats.copies) if copy not in self._out]
        self._values: dict[int, SSAValue] = {}
        attributes = whole.arg_attrs or [DictionaryAttr({}) for _ in range(step.arguments)]
        self._arguments = list(map(plain, attributes))
        self._replaced = list(map(_result_of, self._arguments))

    def folded(self) -> Folded:
        """The step that is left."""
        step, block = self._step, self._whole.body.block
        arguments_out = set(self._repeats.arguments[:, self._out].ravel().tolist())
        arguments = [number for number in range(step.arguments) if number not in arguments_out]
        made = Block(arg_types=[block.args[number].type for number in arguments])
        self._values.update(zip(arguments, made.args, strict=True))
        left = self._reads_of_copies()
        out = set(self._repeats.ops[:, self._out].ravel().tolist())
        for place in range(len(step.ops)):
            if place not in out:
                made.add_op(self._copy(place, left.get(place)))
        return self._around(made, arguments, self._results(arguments_out))

    def _reads_of_copies(self) -> dict[int, list[int]]:
        """What the ops of the copies that are left read: the next copy is the next that is left."""
        repeats, step = self._repeats, self._step
        places = repeats.ops[:, self._stay].tolist()
        found = {}
        for family, reads in enumerate(repeats.reads):
            for index, place in enumerate(places[family]):
                read = step.operands(place)
                for operand, source in enumerate(reads):
                    if source is not None and 0 <= index + source.distance < self._kept:
                        read[operand] = repeats.value(step, source, self._stay[index + source.distance])
                found[place] = read
        return found

    def _copy(self, place: int, read: list[int] | None) -> CirhOp:
        op = self._step.ops[place]
        if read is None:
            read = self._step.operands(place)
            if isinstance(op, COLLECTORS):
                read = [number for number in read if number in self._values]
        operands = [self._value(number) for number in read]
        attributes = _without_origin(op) | {NODE_NAME: text_attr(str(place))}
        copy = op.made_of(operands, retyped(op, operands), op.properties, attributes)
        self._values.update(zip(self._step.results(place), copy.results, strict=True))
        return copy

    def _value(self, number: int) -> SSAValue:
        value = self._values.get(number)
        if value is None:
            raise NotFoldedError("something that is no copy of the block reads one in the middle")
        return value

    def _results(self, arguments_out: set[int]) -> list[int]:
        """Places of the results that are left: all that do not replace an argument which is left out."""
        replaced = {self._replaced[number] for number in arguments_out}
        return [place for place in range(len(self._step.returned)) if place not in replaced]

    def _around(self, block: Block, arguments: list[int], results: list[int]) -> Folded:
        """A module around a block."""
        whole, numbers = self._whole, self._moved_results()
        terminator = ReturnOp.create(operands=[self._value(numbers[place]) for place in results])
        block.add_op(terminator)
        for new, place in zip(terminator.operands, results, strict=True):
            if new.type != whole.function_type.outputs.data[place]:
                raise NotFoldedError("a result depends on the number of copies")
        place_of = {place: index for index, place in enumerate(results)}
        function = named_function(
            block,
            terminator,
            [_aliased(self._arguments[number], place_of) for number in arguments],
            [{} if whole.res_attrs is None else plain(whole.res_attrs.data[place]) for place in results],
        )
        own = function.attributes.keys() | function.properties.keys()
        function.attributes.update({k: v for k, v in whole.attributes.items() if k not in own})
        short: ModuleOp = self._module.clone_without_regions()
        short.body.add_block(Block([function]))
        return Folded(short, whole, self._step, self._repeats, self._kept, results, arguments, self._replaced)

    def _moved_results(self) -> list[int]:
        """The values of the results; new values of copies that are left are those of copies that are left."""
        repeats, step = self._repeats, self._step
        found = list(step.returned)
        for row in repeats.arguments:
            replaced = [self._replaced[number] for number in row.tolist()]
            results = [place for place in replaced if place is not None]
            if not results:
                continue
            if len(results) < len(replaced):
                raise NotFoldedError("the state of some copies is replaced, that of others is not")
            read = self._source([step.returned[place] for place in results])
            if read is None:
                continue
            for index, copy in enumerate(self._stay):
                if 0 <= index + read.distance < self._kept:
                    found[results[copy]] = repeats.value(step, read, self._stay[index + read.distance])
        return found

    def _source(self, values: Sequence[int]) -> Read | None:
        """Where the new values of a state come from, by copy; None for what is of no copy."""
        repeats, step, middle = self._repeats, self._step, len(values) // 2
        place = int(step.producer[values[middle]])
        at = np.argwhere(repeats.ops == place)
        if not len(at):
            return None
        family, copy = at[0].tolist()
        read = Read(family, False, values[middle] - int(step.first_result[place]), copy - middle)
        for index, value in enumerate(values):
            source = index + read.distance
            if 0 <= source < repeats.copies and value != repeats.value(step, read, source):
                raise NotFoldedError("the state of copies is replaced by different values")
        return read


def _without_origin(op: CirhOp) -> dict[str, Attribute]:
    return {name: value for name, value in op.attributes.items() if name not in ORIGIN}


def _result_of(argument: Mapping[str, Attribute]) -> int | None:
    """The place of the result that replaces an argument with these attributes."""
    alias = argument.get(ALIASING_OUTPUT)
    return int(alias.value.data) if isinstance(alias, IntegerAttr) else None


def _aliased(argument: Mapping[str, Attribute], place_of: Mapping[int, int]) -> Mapping[str, Attribute]:
    """The attributes of an argument, with the new place of the result that replaces it."""
    result = _result_of(argument)
    return argument if result is None else {**argument, ALIASING_OUTPUT: IntegerAttr(place_of[result], i64)}
