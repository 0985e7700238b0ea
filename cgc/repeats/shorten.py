"""Shorten a step: leave out most copies of the block that repeats in it."""

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
from cgc.cirh.interface import ALIASING_OUTPUT, build_graph_function, graph_function, plain
from cgc.cirh.op_table import OpTable, tabulate_ops
from cgc.cirh.ops import ConcatOp, L2NormOp
from cgc.errors import InvalidOpError
from cgc.repeats.find import CopiesDifferError, OperandSource, Repeats, find_repeats

FIRST_OMITTED = 1  # index of the first copy that is left out

# To leave copies out and to restore them takes a sixth of the time that passes take on the whole step.
LEAST_GAIN = 1.25

# Ops that take any number of values, for instance one of each copy.
COLLECTORS = (ConcatOp, L2NormOp)


@dataclass(frozen=True)
class ShortStep:
    """A step without most copies of its repeating block.

    Attributes:
        module: the short step. The name of each op is its index in the whole step, and its only origin.
        whole: the function of the whole step.
        step: the whole step as arrays.
        repeats: the block that repeats in it.
        kept: number of copies in the short step.
        results: indices of the results of the short step among those of the whole step.
        arguments: indices of the arguments of the short step among those of the whole step.
        replaced: for each argument of the whole step the index of the result that replaces it, or None.
    """

    module: ModuleOp
    whole: FuncOp
    step: OpTable
    repeats: Repeats
    kept: int
    results: Sequence[int]
    arguments: Sequence[int]
    replaced: Sequence[int | None]

    @property
    def omitted(self) -> int:
        """Number of copies that are left out."""
        return self.repeats.copies - self.kept

    @property
    def kept_copies(self) -> list[int]:
        """Indices of the copies in the short step."""
        return [*range(FIRST_OMITTED), *range(FIRST_OMITTED + self.omitted, self.repeats.copies)]

    def short_index(self, copy: int) -> int:
        """Return the index of a copy of the whole step among those of the short step."""
        return copy if copy < FIRST_OMITTED else copy - self.omitted

    def rebuild(self) -> ShortStep:
        """Build the short step again: passes change `module` in place."""
        return _Shortener(self.module, self.whole, self.step, self.repeats, self.kept).shorten()

    def with_one_copy_less(self) -> ShortStep:
        """Return the step with one copy less, made from the short step."""
        out = self.repeats.ops[:, FIRST_OMITTED : FIRST_OMITTED + self.omitted]
        places = np.delete(np.arange(len(self.step.ops)), out.ravel())
        kept_copies, repeats = self.kept_copies, self.repeats
        ops = np.searchsorted(places, repeats.ops[:, kept_copies])
        arguments = np.searchsorted(np.array(self.arguments), repeats.arguments[:, kept_copies])
        function = graph_function(self.module)
        step = tabulate_ops(function)
        assert step is not None, "it consists of ops of CIRH"
        left = Repeats(ops, arguments, repeats.reads)
        return _Shortener(self.module, function, step, left, self.kept - 1).shorten()

    @cached_property
    def op_copies(self) -> dict[int, tuple[int, int]]:
        """Index of an op of a kept copy -> (family, index of the copy among those kept)."""
        table = self.repeats.ops[:, self.kept_copies].tolist()
        return {place: (family, copy) for family, row in enumerate(table) for copy, place in enumerate(row)}

    @cached_property
    def argument_copies(self) -> dict[int, tuple[int, int]]:
        """Index of an argument of any copy -> (family, copy)."""
        table = self.repeats.arguments.tolist()
        return {place: (family, copy) for family, row in enumerate(table) for copy, place in enumerate(row)}


def shorten_step(module: ModuleOp, step: OpTable, kept: int) -> ShortStep | None:
    """Leave out most copies of the repeating block; None if the step does not get much shorter.

    Args:
        module: the step; it is not changed.
        step: the same step as arrays.
        kept: number of copies to keep, 2 or more.

    Raises:
        CopiesDifferError: an op outside of the copies reads a copy in the middle.
    """
    repeats = find_repeats(step)
    if repeats is None or not _is_worthwhile(repeats, len(step.ops), kept):
        return None
    return _Shortener(module, graph_function(module), step, repeats, kept).shorten()


def _is_worthwhile(repeats: Repeats, ops: int, kept: int) -> bool:
    """Return whether the short step, and that with one copy less, are much shorter than the whole step."""
    of_a_copy = len(repeats.ops)
    left = ops - of_a_copy * (repeats.copies - kept)
    return ops >= LEAST_GAIN * (2 * left - of_a_copy)


def infer_types(op: CirhOp, operands: Sequence[SSAValue]) -> Sequence[Attribute]:
    """Return the result types of an op for other operands than its own.

    Raises:
        CopiesDifferError: the op cannot take them.
    """
    if [value.type for value in op.operand_values] == [value.type for value in operands]:
        return [result.type for result in op.results]
    try:
        return type(op).infer_types(operands, op.properties)
    except (InvalidOpError, VerifyException, ValueError) as error:
        raise CopiesDifferError(f"{op.name} depends on the number of copies: {error}") from None


class _Shortener:
    def __init__(self, module: ModuleOp, whole: FuncOp, step: OpTable, repeats: Repeats, kept: int) -> None:
        self._module, self._whole, self._step, self._repeats = module, whole, step, repeats
        self._kept = kept
        self._out = range(FIRST_OMITTED, FIRST_OMITTED + repeats.copies - kept)
        self._kept_copies = [copy for copy in range(repeats.copies) if copy not in self._out]
        self._values: dict[int, SSAValue] = {}
        attributes = whole.arg_attrs or [DictionaryAttr({}) for _ in range(step.arguments)]
        self._arguments = list(map(plain, attributes))
        self._replaced = list(map(_result_of, self._arguments))

    def shorten(self) -> ShortStep:
        """Build the short step."""
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
        replaced = {self._replaced[number] for number in arguments_out}
        results = [place for place in range(len(self._step.returned)) if place not in replaced]
        return self._build_module(made, arguments, results)

    def _reads_of_copies(self) -> dict[int, list[int]]:
        """Return the operands of the ops of kept copies: the next copy is the next one that is kept."""
        repeats, step = self._repeats, self._step
        places = repeats.ops[:, self._kept_copies].tolist()
        found = {}
        for family, reads in enumerate(repeats.reads):
            for index, place in enumerate(places[family]):
                read = step.operands(place)
                for operand, source in enumerate(reads):
                    if source is not None and 0 <= index + source.distance < self._kept:
                        read[operand] = repeats.value(
                            step, source, self._kept_copies[index + source.distance]
                        )
                found[place] = read
        return found

    def _copy(self, place: int, read: list[int] | None) -> CirhOp:
        op = self._step.ops[place]
        if read is None:
            read = self._step.operands(place)
            if isinstance(op, COLLECTORS):
                read = [number for number in read if number in self._values]
        operands = [self._value(number) for number in read]
        attributes = {name: value for name, value in op.attributes.items() if name not in ORIGIN}
        attributes[NODE_NAME] = text_attr(str(place))
        copy = op.create_unchecked(operands, infer_types(op, operands), op.properties, attributes)
        self._values.update(zip(self._step.results(place), copy.results, strict=True))
        return copy

    def _value(self, number: int) -> SSAValue:
        value = self._values.get(number)
        if value is None:
            raise CopiesDifferError("an op outside of the copies of the block reads one in the middle")
        return value

    def _build_module(self, block: Block, arguments: list[int], results: list[int]) -> ShortStep:
        """Build the module around a block."""
        whole, numbers = self._whole, self._result_values()
        terminator = ReturnOp.create(operands=[self._value(numbers[place]) for place in results])
        block.add_op(terminator)
        for new, place in zip(terminator.operands, results, strict=True):
            if new.type != whole.function_type.outputs.data[place]:
                raise CopiesDifferError("a result depends on the number of copies")
        place_of = {place: index for index, place in enumerate(results)}
        function = build_graph_function(
            block,
            terminator,
            [_renumber_alias(self._arguments[number], place_of) for number in arguments],
            [{} if whole.res_attrs is None else plain(whole.res_attrs.data[place]) for place in results],
        )
        own = function.attributes.keys() | function.properties.keys()
        function.attributes.update({k: v for k, v in whole.attributes.items() if k not in own})
        short: ModuleOp = self._module.clone_without_regions()
        short.body.add_block(Block([function]))
        return ShortStep(
            short, whole, self._step, self._repeats, self._kept, results, arguments, self._replaced
        )

    def _result_values(self) -> list[int]:
        """Return the values of the results; new state of a kept copy comes from a kept copy."""
        repeats, step = self._repeats, self._step
        found = list(step.returned)
        for row in repeats.arguments:
            replaced = [self._replaced[number] for number in row.tolist()]
            results = [place for place in replaced if place is not None]
            if not results:
                continue
            if len(results) < len(replaced):
                raise CopiesDifferError("the state of some copies is replaced, that of others is not")
            read = self._source([step.returned[place] for place in results])
            if read is None:
                continue
            for index, copy in enumerate(self._kept_copies):
                if 0 <= index + read.distance < self._kept:
                    found[results[copy]] = repeats.value(step, read, self._kept_copies[index + read.distance])
        return found

    def _source(self, values: Sequence[int]) -> OperandSource | None:
        """Return the source of the new values of a state; None for a value outside of the copies."""
        repeats, step, middle = self._repeats, self._step, len(values) // 2
        place = int(step.producer[values[middle]])
        at = np.argwhere(repeats.ops == place)
        if not len(at):
            return None
        family, copy = at[0].tolist()
        read = OperandSource(family, False, values[middle] - int(step.first_result[place]), copy - middle)
        for index, value in enumerate(values):
            source = index + read.distance
            if 0 <= source < repeats.copies and value != repeats.value(step, read, source):
                raise CopiesDifferError("the state of copies is replaced by different values")
        return read


def _result_of(argument: Mapping[str, Attribute]) -> int | None:
    """Return the index of the result that replaces an argument with these attributes."""
    alias = argument.get(ALIASING_OUTPUT)
    return int(alias.value.data) if isinstance(alias, IntegerAttr) else None


def _renumber_alias(
    argument: Mapping[str, Attribute], place_of: Mapping[int, int]
) -> Mapping[str, Attribute]:
    """Return the attributes of an argument, with the new index of the result that replaces it."""
    result = _result_of(argument)
    return argument if result is None else {**argument, ALIASING_OUTPUT: IntegerAttr(place_of[result], i64)}
