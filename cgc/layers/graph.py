"""A step as integers: the ops and values of a module without IR objects, for the cut into layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, SSAValue

from cgc.cirh.base import CirhOp
from cgc.cirh.op_table import Ints, tabulate_ops
from cgc.cirh.traits import Order, Samples
from cgc.cirh.types import dtype_name, element_count, tensor_of
from cgc.kernels.program import Program
from cgc.layers.micro_batches import TOTAL_OF, MicroStep
from cs_toolkit.layered_step import SMALL_BYTES
from cs_toolkit.step import ITEM_BYTES, OPTIMIZER_STATE, device_dtype


@dataclass(frozen=True)
class StepGraph:
    """Ops and values by number: values are the arguments of the step, then the results of its ops in order.

    Attributes:
        operands: of every op, the values that it reads.
        results: of every op, the values that it makes.
        size_bytes: of every value.
        inputs: the arguments that are tensors of the batch.
        state: all other arguments.
        optimizer_state: those of them that only updates read.
        replacements: for each state argument that the step replaces, its new value.
        outputs: the values that the step outputs.
        forward: ops of the forward pass.
        contractions: ops that belong on the wafer: products, gradients of layers, sums over samples.
            Sums of the rows of a table do not: an update may compute them, on fewer rows.
        whole_inputs: of a step in micro-batches, the arguments that are tensors of the whole batch.
        number: of such a step, the argument that is the number of the micro-batch; else None.
        totals: of such a step, the ops whose results are combined over micro-batches, and how.
        labels: of every op, equal for ops that may be the same op of two copies of a layer.
        types: of every value the number of its type.
    """

    operands: Sequence[tuple[int, ...]]
    results: Sequence[tuple[int, ...]]
    size_bytes: Sequence[int]
    inputs: frozenset[int]
    state: frozenset[int]
    optimizer_state: frozenset[int]
    replacements: dict[int, int]
    outputs: tuple[int, ...]
    forward: frozenset[int]
    contractions: frozenset[int]
    whole_inputs: tuple[int, ...] = ()
    number: int | None = None
    totals: Mapping[int, str] = field(default_factory=dict)
    labels: Sequence[int] = ()
    types: Sequence[int] = ()

    @cached_property
    def producer(self) -> dict[int, int]:
        """The op that makes a value; arguments have none."""
        return {value: op for op, results in enumerate(self.results) for value in results}

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """The ops that read a value, ascending; a value that no op reads has no entry."""
        found: dict[int, list[int]] = {}
        for op, read in enumerate(self.operands):
            for value in dict.fromkeys(read):
                found.setdefault(value, []).append(op)
        return {value: tuple(ops) for value, ops in found.items()}

    @cached_property
    def producers(self) -> Callable[[int], tuple[int, ...]]:
        """Returns the ops whose results an op reads."""
        of = self.producer
        return [tuple(dict.fromkeys([of[v] for v in read if v in of])) for read in self.operands].__getitem__

    def op_users(self, op: int) -> tuple[int, ...]:
        """Return the ops that read a result of an op."""
        return tuple(dict.fromkeys(user for value in self.results[op] for user in self.users.get(value, ())))

    @cached_property
    def is_small(self) -> Callable[[int], bool]:
        """Returns True for a value that is cheap to send to any layer."""
        return [size <= SMALL_BYTES for size in self.size_bytes].__getitem__

    @cached_property
    def has_small_results(self) -> Callable[[int], bool]:
        """Returns True for an op whose results are all small."""
        return [all(map(self.is_small, results)) for results in self.results].__getitem__

    def ancestors(self, ops: Iterable[int]) -> frozenset[int]:
        """Return the ops themselves and all that they depend on."""
        return _closure(ops, self.producers)

    def descendants(self, ops: Iterable[int]) -> frozenset[int]:
        """Return the ops themselves and all that depend on them."""
        return _closure(ops, self.op_users)


def _closure(ops: Iterable[int], neighbors: Callable[[int], Iterable[int]]) -> frozenset[int]:
    """Return all ops that can be reached from the given ones, which are included."""
    found: set[int] = set()
    pending = list(ops)
    while pending:
        op = pending.pop()
        if op not in found:
            found.add(op)
            pending += neighbors(op)
    return frozenset(found)


def step_graph(program: Program, micro: MicroStep | None = None) -> StepGraph:
    """Return the graph of a step; op *i* is `program.ops[i]`, value *i* is `program.values[i]`.

    Args:
        program: the step.
        micro: its rewrite for micro-batches; None without one.
    """
    scanned = tabulate_ops(program.function)
    assert scanned is not None, "a program has only ops of CIRH"
    values = program.values
    count = scanned.arguments
    number = {id(value): index for index, value in enumerate(values)}
    # The table has the arguments in the order of the function; in the program, state comes first.
    program_number = np.arange(len(values))
    program_number[:count] = [number[id(value)] for value in program.function.body.block.args]
    types = _number_types([value.type for value in values[:count]] + list(scanned.types[count:]))
    inputs = [number[id(value)] for value in program.inputs]
    micro_number = inputs.pop() if micro is not None and micro.is_numbered else None
    num_cut_inputs = len(inputs) - (0 if micro is None else len(micro.whole_inputs))
    contractions = {kind for kind in set(program.kinds) if _is_contraction(kind)}
    # A step has few types: compute the size of one value of each.
    type_bytes = {kind: value_bytes(value) for kind, value in dict(zip(types, values, strict=True)).items()}
    return StepGraph(
        operands=_split_by_op(program_number[scanned.read], scanned.first_read),
        results=_split_by_op(np.arange(count, len(values)), scanned.first_result - count),
        size_bytes=[type_bytes[kind] for kind in types],
        inputs=frozenset(inputs[:num_cut_inputs]),
        state=frozenset(range(len(program.state))),
        optimizer_state=frozenset(
            index for index, name in enumerate(program.state.values()) if name.startswith(OPTIMIZER_STATE)
        ),
        replacements={number[id(old)]: number[id(new)] for old, new in program.replacements.items()},
        outputs=tuple([number[id(value)] for value in program.outputs]),
        forward=program.forward,
        contractions=frozenset(index for index, kind in enumerate(program.kinds) if kind in contractions),
        whole_inputs=tuple(inputs[num_cut_inputs:]),
        number=micro_number,
        totals={
            index: kind.data
            for index, op in enumerate(program.ops)
            if TOTAL_OF in op.attributes and isinstance(kind := op.attributes[TOTAL_OF], StringAttr)
        },
        labels=scanned.labels.tolist(),
        types=types,
    )


def _split_by_op(values: Ints, first: Ints) -> list[tuple[int, ...]]:
    """Return the values of every op, which are contiguous in a flat array."""
    flat, ends = values.tolist(), first.tolist()
    return [tuple(flat[start:end]) for start, end in pairwise(ends)]


def _number_types(types: Sequence[Attribute]) -> list[int]:
    """Return a number for each type, equal for equal types."""
    # A step has few type objects, and hashing one is slow.
    by_type: dict[Attribute, int] = {}
    by_id = {
        key: by_type.setdefault(kind, len(by_type))
        for key, kind in {id(kind): kind for kind in types}.items()
    }
    return [by_id[id(kind)] for kind in types]


def value_bytes(value: SSAValue) -> int:
    """Return the bytes of a value on the device."""
    tensor = tensor_of(value)
    return element_count(tensor) * ITEM_BYTES[device_dtype(dtype_name(tensor))]


def _is_contraction(op: type[CirhOp]) -> bool:
    traits = op.TRAITS
    sums_samples = traits.samples in (Samples.FIRST, Samples.SUMMED) and traits.order is not Order.SCATTERS
    return traits.product or traits.gradient_of is not None or sums_samples
