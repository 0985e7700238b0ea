"""Shorten a step: omit most copies of the block that repeats in it."""

from __future__ import annotations

from collections.abc import Sequence
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

FIRST_OMITTED = 1  # index of the first copy that is omitted

# The whole step must have this multiple of the ops to rewrite: shortening it and expanding the result take a
# sixth of the time that passes take on the whole step.
MIN_GAIN = 1.25

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
        copies: number of copies in the short step.
        results: indices of the results of the short step among those of the whole step.
        arguments: indices of the arguments of the short step among those of the whole step.
        replacements: for each argument of the whole step the index of the result that replaces it, or None.
    """

    module: ModuleOp
    whole: FuncOp
    step: OpTable
    repeats: Repeats
    copies: int
    results: Sequence[int]
    arguments: Sequence[int]
    replacements: Sequence[int | None]

    @property
    def num_omitted(self) -> int:
        """Number of copies that are omitted."""
        return self.repeats.copies - self.copies

    @property
    def kept_copies(self) -> list[int]:
        """Indices in the whole step of the copies in the short step."""
        return [*range(FIRST_OMITTED), *range(FIRST_OMITTED + self.num_omitted, self.repeats.copies)]

    def short_index(self, copy: int) -> int:
        """Return the index of a copy of the whole step among those of the short step."""
        return copy if copy < FIRST_OMITTED else copy - self.num_omitted

    def rebuild(self) -> ShortStep:
        """Build the short step again: passes change `module` in place."""
        return _Shortener(self.module, self.whole, self.step, self.repeats, self.copies).shorten()

    def omit_another_copy(self) -> ShortStep:
        """Return a step with one copy fewer, as shortened from this short step."""
        omitted = self.repeats.ops[:, FIRST_OMITTED : FIRST_OMITTED + self.num_omitted]
        kept_ops = np.delete(np.arange(len(self.step.ops)), omitted.ravel())
        ops = np.searchsorted(kept_ops, self.repeats.ops[:, self.kept_copies])
        arguments = np.searchsorted(np.array(self.arguments), self.repeats.arguments[:, self.kept_copies])
        function = graph_function(self.module)
        step = tabulate_ops(function)
        assert step is not None, "it consists of ops of CIRH"
        repeats = Repeats(ops, arguments, self.repeats.reads)
        return _Shortener(self.module, function, step, repeats, self.copies - 1).shorten()

    @cached_property
    def op_copies(self) -> dict[int, tuple[int, int]]:
        """Index of an op of a kept copy -> (family, index of the copy among those kept)."""
        table = self.repeats.ops[:, self.kept_copies].tolist()
        return {index: (family, copy) for family, row in enumerate(table) for copy, index in enumerate(row)}

    @cached_property
    def argument_copies(self) -> dict[int, tuple[int, int]]:
        """Index of an argument of any copy -> (family, copy)."""
        table = self.repeats.arguments.tolist()
        return {index: (family, copy) for family, row in enumerate(table) for copy, index in enumerate(row)}


def shorten_step(module: ModuleOp, step: OpTable, copies: int) -> ShortStep | None:
    """Omit most copies of the repeating block; None if the step does not get much shorter.

    Args:
        module: the step; it is not changed.
        step: the same step as arrays.
        copies: number of copies to keep, 2 or more.

    Raises:
        CopiesDifferError: an op outside of the copies reads a copy in the middle.
    """
    repeats = find_repeats(step)
    if repeats is None:
        return None
    block_ops = len(repeats.ops)
    short_ops = len(step.ops) - block_ops * (repeats.copies - copies)
    # Passes may have to run on the short step and on that with one copy fewer.
    if len(step.ops) < MIN_GAIN * (2 * short_ops - block_ops):
        return None
    return _Shortener(module, graph_function(module), step, repeats, copies).shorten()


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
    def __init__(self, module: ModuleOp, whole: FuncOp, step: OpTable, repeats: Repeats, copies: int) -> None:
        self._module, self._whole, self._step, self._repeats = module, whole, step, repeats
        self._copies = copies
        self._omitted = range(FIRST_OMITTED, FIRST_OMITTED + repeats.copies - copies)
        self._kept_copies = [copy for copy in range(repeats.copies) if copy not in self._omitted]
        # Number of a value in the whole step -> the value in the short step.
        self._values: dict[int, SSAValue] = {}
        attributes = whole.arg_attrs or [DictionaryAttr({}) for _ in range(step.arguments)]
        self._argument_attributes = list(map(plain, attributes))
        aliases = (argument.get(ALIASING_OUTPUT) for argument in self._argument_attributes)
        self._replacements = [
            int(alias.value.data) if isinstance(alias, IntegerAttr) else None for alias in aliases
        ]

    def shorten(self) -> ShortStep:
        """Build the short step."""
        step, repeats, whole_block = self._step, self._repeats, self._whole.body.block
        omitted_arguments = set(repeats.arguments[:, self._omitted].ravel().tolist())
        arguments = [index for index in range(step.arguments) if index not in omitted_arguments]
        block = Block(arg_types=[whole_block.args[index].type for index in arguments])
        self._values.update(zip(arguments, block.args, strict=True))
        operands_of_copies = self._operands_of_copies()
        omitted_ops = set(repeats.ops[:, self._omitted].ravel().tolist())
        for index, op in enumerate(step.ops):
            if index in omitted_ops:
                continue
            numbers = operands_of_copies.get(index)
            if numbers is None:
                numbers = step.operands(index)
                if isinstance(op, COLLECTORS):
                    numbers = [number for number in numbers if number in self._values]
            operands = [self._value(number) for number in numbers]
            attributes = {name: value for name, value in op.attributes.items() if name not in ORIGIN}
            attributes[NODE_NAME] = text_attr(str(index))
            copy = op.create_unchecked(operands, infer_types(op, operands), op.properties, attributes)
            self._values.update(zip(step.results(index), copy.results, strict=True))
            block.add_op(copy)
        omitted_results = {self._replacements[index] for index in omitted_arguments}
        results = [index for index in range(len(step.returned)) if index not in omitted_results]
        return self._build_module(block, arguments, results)

    def _operands_of_copies(self) -> dict[int, list[int]]:
        """Return the operands of the ops of kept copies: the next copy is the next one that is kept."""
        repeats, step = self._repeats, self._step
        ops = repeats.ops[:, self._kept_copies].tolist()
        found = {}
        for family, sources in enumerate(repeats.reads):
            for copy, op in enumerate(ops[family]):
                operands = step.operands(op)
                for operand, source in enumerate(sources):
                    if source is not None and 0 <= copy + source.distance < self._copies:
                        source_copy = self._kept_copies[copy + source.distance]
                        operands[operand] = repeats.value(step, source, source_copy)
                found[op] = operands
        return found

    def _value(self, number: int) -> SSAValue:
        value = self._values.get(number)
        if value is None:
            raise CopiesDifferError("an op outside of the copies of the block reads one in the middle")
        return value

    def _build_module(self, block: Block, arguments: list[int], results: list[int]) -> ShortStep:
        """Build the module around a block."""
        whole, numbers = self._whole, self._result_values()
        terminator = ReturnOp.create(operands=[self._value(numbers[index]) for index in results])
        block.add_op(terminator)
        for value, index in zip(terminator.operands, results, strict=True):
            if value.type != whole.function_type.outputs.data[index]:
                raise CopiesDifferError("a result depends on the number of copies")
        short_index = {index: position for position, index in enumerate(results)}
        attributes = []
        for argument in arguments:
            own, result = self._argument_attributes[argument], self._replacements[argument]
            if result is not None:
                own = {**own, ALIASING_OUTPUT: IntegerAttr(short_index[result], i64)}
            attributes.append(own)
        function = build_graph_function(
            block,
            terminator,
            attributes,
            [{} if whole.res_attrs is None else plain(whole.res_attrs.data[index]) for index in results],
        )
        own_names = function.attributes.keys() | function.properties.keys()
        function.attributes.update({k: v for k, v in whole.attributes.items() if k not in own_names})
        short: ModuleOp = self._module.clone_without_regions()
        short.body.add_block(Block([function]))
        return ShortStep(
            short, whole, self._step, self._repeats, self._copies, results, arguments, self._replacements
        )

    def _result_values(self) -> list[int]:
        """Return the values of the results; new state of a kept copy comes from a kept copy."""
        repeats, step = self._repeats, self._step
        values = list(step.returned)
        for row in repeats.arguments:
            replacements = [self._replacements[argument] for argument in row.tolist()]
            results = [index for index in replacements if index is not None]
            if not results:
                continue
            if len(results) < len(replacements):
                raise CopiesDifferError("the state of some copies is replaced, that of others is not")
            source = self._state_source([step.returned[index] for index in results])
            if source is None:
                continue
            for copy, whole_copy in enumerate(self._kept_copies):
                if 0 <= copy + source.distance < self._copies:
                    source_copy = self._kept_copies[copy + source.distance]
                    values[results[whole_copy]] = repeats.value(step, source, source_copy)
        return values

    def _state_source(self, values: Sequence[int]) -> OperandSource | None:
        """Return the source of the new values of a state; None for a value outside of the copies."""
        repeats, step, middle = self._repeats, self._step, len(values) // 2
        producer = int(step.producer[values[middle]])
        found = np.argwhere(repeats.ops == producer)
        if not len(found):
            return None
        family, copy = found[0].tolist()
        result = values[middle] - int(step.first_result[producer])
        source = OperandSource(family, False, result, copy - middle)
        for reader, value in enumerate(values):
            source_copy = reader + source.distance
            if 0 <= source_copy < repeats.copies and value != repeats.value(step, source, source_copy):
                raise CopiesDifferError("the state of copies is replaced by different values")
        return source
