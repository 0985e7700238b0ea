"""A step for kernel matching: producers and users of values, state, batch size, forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue

from cgc.cirh.base import CirhOp
from cgc.cirh.interface import (
    INPUT_NAME,
    MODE,
    OUTPUT_NAME,
    RESOURCE_NAME,
    alias_of,
    arguments_and_results,
    graph_function,
)
from cgc.cirh.ops import BroadcastInDimOp, ops_where
from cgc.cirh.traits import NO_WORK, Elements, Samples
from cgc.cirh.types import element_count, shape_of, tensor_of
from cgc.errors import KernelGraphError
from cs_toolkit.step import LOSS, MODEL_STATE, OPTIMIZER_STATE, TensorSpec, device_bytes

# Ops without work: a constant is loaded once, the others only change the index of an element.
FREE = ops_where(lambda op: op.TRAITS.work == NO_WORK)

# Ops whose results are their operands under another shape or type.
RELABELS = ops_where(lambda op: op.TRAITS.elements.relabels)

# Ops whose results are their operands under another shape, type or order of dimensions.
PASS_THROUGH = RELABELS | ops_where(lambda op: op.TRAITS.elements is Elements.PERMUTED)

# Ops with multiplications that the cost formulas of their kernels count.
PRODUCTS = ops_where(lambda op: op.TRAITS.product)


@dataclass(frozen=True)
class StepPart:
    """Context of a part of a step that its module does not contain.

    Attributes:
        batch_size: samples of the step.
        forward: positions of the part's ops that belong to the forward pass.
        gradients: maps the position of a state argument to the result that is its gradient; the update of the
            state is another part.
    """

    batch_size: int
    forward: frozenset[int]
    gradients: Mapping[int, int]


class Program:
    """The ops of `@graph`; methods take and return positions of ops instead of IR objects.

    Attributes:
        function: `@graph` itself.
        ops: all ops but the return.
        kinds: their classes.
        batch_size: samples of a step: the most common leading dimension of the batch inputs, 1 without any.
        input_bytes_per_sample: of all batch inputs, rounded up.
        state: names of the state arguments.
        replacements: the new value of each state argument that the step replaces; in a part of a step the
            gradient of the argument.
    """

    def __init__(self, module: ModuleOp, part: StepPart | None = None) -> None:
        self.function = function = graph_function(module)
        arguments, results = arguments_and_results(function)
        block = function.body.block
        self.ops: tuple[CirhOp, ...] = tuple(
            [_check_dialect(op) for op in block.ops if op is not block.last_op]
        )
        self.kinds: tuple[type[CirhOp], ...] = tuple(map(type, self.ops))
        mode = function.attributes.get(MODE)
        self.mode = mode.data if isinstance(mode, StringAttr) else "train"
        assert block.last_op is not None, "a function ends in its return"
        returned = list(block.last_op.operands)
        self.state: dict[SSAValue, str] = {}
        self.replacements: dict[SSAValue, SSAValue] = {}
        self.inputs: list[SSAValue] = []
        batch: list[TensorSpec] = []
        for value, argument in zip(block.args, arguments, strict=True):
            name = argument.text(RESOURCE_NAME)
            alias = alias_of(argument)
            if name is not None:
                self.state[value] = name
            elif argument.text(INPUT_NAME) is not None or alias is None:
                self.inputs.append(value)
                batch.append(argument.spec(f"input_{len(batch)}"))
            if alias is not None:
                self.replacements[value] = returned[alias]
        if part is not None:
            self.replacements = {
                block.args[state]: returned[result] for state, result in part.gradients.items()
            }
        names = [result.text(OUTPUT_NAME) for result in results]
        self.outputs = [value for value, name in zip(returned, names, strict=True) if name is not None]
        self._losses = [value for value, name in zip(returned, names, strict=True) if name == LOSS]
        self._part = part
        self.batch_size = _batch_size(self.inputs) if part is None else part.batch_size
        self.input_bytes_per_sample = -(-device_bytes(tuple(batch)) // self.batch_size)
        self._users: dict[SSAValue, list[int]] = {}
        self._position: dict[Operation, int] = {op: index for index, op in enumerate(self.ops)}

    def producer(self, value: SSAValue) -> int | None:
        """Return the position of the op that computes a value; None for an argument."""
        return self._position.get(value.owner) if isinstance(value.owner, Operation) else None

    def users(self, value: SSAValue) -> list[int]:
        """Return the positions of the ops that read a value, ascending, without the return."""
        if value not in self._users:
            found = {self._position[use.operation] for use in value.uses if use.operation in self._position}
            self._users[value] = sorted(found)
        return list(self._users[value])

    def user_indices(self, index: int) -> list[int]:
        """Return the positions of the ops that read any result of an op, ascending."""
        return sorted({user for result in self.ops[index].results for user in self.users(result)})

    def users_through_casts(self, index: int) -> list[int]:
        """Return the positions of the ops that read an op's result directly or through casts and reshapes."""
        found, pending = set(), [index]
        while pending:
            for user in self.user_indices(pending.pop()):
                if self.kinds[user] in RELABELS:
                    pending.append(user)
                else:
                    found.add(user)
        return sorted(found)

    @cached_property
    def values(self) -> list[SSAValue]:
        """All values in the order of their numbers: state, inputs, results."""
        return [*self.state, *self.inputs, *[result for op in self.ops for result in op.results]]

    def producers(self, index: int) -> list[int]:
        """Return the positions of the ops that compute the operands of an op, ascending."""
        return sorted(set(self._producers[index]))

    def elements(self, index: int) -> int:
        """Return the number of elements of an op's largest result."""
        return max((elements(result) for result in self.ops[index].results), default=0)

    def origin(self, value: SSAValue) -> tuple[SSAValue, list[int]]:
        """Follow casts, transposes and reshapes back.

        Returns:
            The value that they start from, and the positions of the ops in between.
        """
        path: list[int] = []
        while (index := self.producer(value)) is not None and self.kinds[index] in PASS_THROUGH:
            path.append(index)
            value = self.ops[index].operands[0]
        return value, path

    def origin_through_broadcast(self, value: SSAValue) -> tuple[SSAValue, list[int]]:
        """Follow a value back as `origin` does, also through one broadcast of a vector or table."""
        value, path = self.origin(value)
        index = self.producer(value)
        if index is not None and isinstance(self.ops[index], BroadcastInDimOp):
            value, before = self.origin(self.ops[index].operands[0])
            path = [*path, index, *before]
        return value, path

    @cached_property
    def forward(self) -> frozenset[int]:
        """Ops of the forward pass.

        In training, these are the ops that the loss depends on, and those of other outputs of the forward
        pass, such as an accuracy. In other modes, these are all ops.
        """
        if self._part is not None:
            return self._part.forward
        if self.mode != "train" or not self.outputs:
            return frozenset(range(len(self.ops)))
        if not self._losses:
            return self.ancestors(self.outputs)
        updated = (new for state, new in self.replacements.items() if _is_trained(self.state.get(state)))
        found = set(self.ancestors(self._losses))
        # No parameter update depends on such an output. Nor may it read the backward pass: the total norm of
        # clipped gradients is an output that updates no parameter.
        for index in sorted(self.ancestors(self.outputs) - self.ancestors(updated)):
            if all(producer in found or producer in self.constant for producer in self._producers[index]):
                found.add(index)
        return frozenset(found)

    @cached_property
    def constant(self) -> frozenset[int]:
        """Ops that depend on no argument: their values are the same in every step."""
        found: set[int] = set()
        for index, op in enumerate(self.ops):
            if all(self.producer(operand) in found for operand in op.operands):
                found.add(index)
        return frozenset(found)

    def ancestors(self, values: Iterable[SSAValue]) -> frozenset[int]:
        """Return all ops that the values depend on."""
        found: set[int] = set()
        pending = [index for value in values if (index := self.producer(value)) is not None]
        while pending:
            index = pending.pop()
            if index not in found:
                found.add(index)
                pending += self._producers[index]
        return frozenset(found)

    @cached_property
    def _producers(self) -> list[list[int]]:
        """For each op the producers of its operands, in the order of the operands."""
        position = {id(result): index for index, op in enumerate(self.ops) for result in op.results}
        found = ([position.get(id(operand), -1) for operand in op.operand_values] for op in self.ops)
        return [[producer for producer in producers if producer >= 0] for producers in found]

    def constants_of(self, values: Iterable[SSAValue]) -> frozenset[int]:
        """Return the ops that compute those of the values that are constant."""
        producers = (index for value in values if (index := self.producer(value)) in self.constant)
        return self.ancestors(result for index in producers for result in self.ops[index].results)

    @cached_property
    def per_sample_values(self) -> frozenset[SSAValue]:
        """Values whose first dimension counts samples (or the rows of all samples)."""
        found: set[SSAValue] = {value for value in self.inputs if self._leads_with_batch(value)}
        for index, op in enumerate(self.ops):
            if self._keeps_samples(index, found):
                results = op.results[:1] if op.TRAITS.samples is Samples.FIRST else op.results
                found.update(result for result in results if self._leads_with_batch(result))
        return frozenset(found)

    def is_per_sample(self, index: int) -> bool:
        """Return True if an op runs for every sample, not once a step as a weight update does."""
        op = self.ops[index]
        return any(value in self.per_sample_values for value in (*op.results, *op.operands))

    def _leads_with_batch(self, value: SSAValue) -> bool:
        shape = shape_of(value)
        return bool(shape) and shape[0] >= self.batch_size and shape[0] % self.batch_size == 0

    def _keeps_samples(self, index: int, known: set[SSAValue]) -> bool:
        op = self.ops[index]
        drawn = op.TRAITS.samples is Samples.DRAWN
        return drawn or any(operand in known for operand in op.sample_operands())


def _is_trained(state: str | None) -> bool:
    return state is not None and state.startswith((MODEL_STATE, OPTIMIZER_STATE))


def elements(value: SSAValue) -> int:
    """Return the number of elements of a tensor value."""
    return element_count(tensor_of(value))


def _check_dialect(op: Operation) -> CirhOp:
    if not isinstance(op, CirhOp):
        raise KernelGraphError(f"op {op.name} is not of the dialect cirh; import or lower it first")
    return op


def _batch_size(inputs: Sequence[SSAValue]) -> int:
    leading = Counter(shape[0] for value in inputs if (shape := shape_of(value)) and shape[0] > 0)
    return leading.most_common(1)[0][0] if leading else 1
