"""Parameters of a kernel's cost function, from the tensors of its ops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from xdsl.ir import SSAValue

from cgc.cirh.constant import ConstOp
from cgc.cirh.convolution import ConvolutionOp
from cgc.cirh.types import shape_of, size_bytes, tensor_of
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.convolution import convolution_sizes
from cgc.kernels.fully_connected import weight_operand
from cgc.kernels.program import Program, elements
from cgc.kernels.work import element_bytes, op_millicycles, reductions, rows_of, stream_millicycles

MATMUL_FAMILIES = frozenset({"fully_connected", "matmul", "convolution"})
_PRODUCTS = frozenset({"MatMul", "Convolution"})
_MAX_PASSES = 3


def parameters(assignment: Assignment, group: Group, samples_in_flight: int) -> dict[str, int]:
    """The parameters that the family's cost function reads.

    Args:
        assignment: all ops with their kernels.
        group: the kernel.
        samples_in_flight: samples that have passed the kernel forward and not yet backward.
    """
    common = {
        "batch": assignment.program.batch_size,
        "resident_bytes": resident_bytes(assignment, group),
        "stash_bytes": samples_in_flight * stash_bytes_per_sample(assignment.program, group),
    }
    if group.family in MATMUL_FAMILIES:
        return {**common, **_matmul(assignment, group)}
    return {**common, **_loop(assignment, group)}


def rows_per_sample(assignment: Assignment, group: Group) -> int:
    """Rows of a sample that stream through a kernel one after the other."""
    if group.family in MATMUL_FAMILIES:
        return _matmul_sizes(assignment, group)[0]
    value = _widest(assignment.program, group)
    return 1 if value is None else rows_of(value, assignment.program.batch_size)[0]


def resident_bytes(assignment: Assignment, group: Group) -> int:
    """Bytes of state, of a gradient for each tensor that is updated, and of large constants in a kernel.

    A state tensor that several kernels read is kept by the one that reads it first.
    """
    program = assignment.program
    total = 0
    read = {operand for index in group.members for operand in program.ops[index].operands}
    for state in read & program.state.keys():
        if program.users(state)[0] in group.members:
            trained = program.state[state].startswith("state.model.") and state in program.replacements
            total += size_bytes(tensor_of(state)) * (2 if trained and group.updates else 1)
    return total + sum(_constant_bytes(program, index) for index in group.members)


def _constant_bytes(program: Program, index: int) -> int:
    """Bytes of a constant; one with the same value everywhere is kept as that value."""
    op = program.ops[index]
    if not isinstance(op, ConstOp) or op.splat_value() is not None:
        return 0
    return size_bytes(tensor_of(op.result))


def stash_bytes_per_sample(program: Program, group: Group) -> int:
    """Bytes per sample of what the backward ops of a kernel read of the forward pass."""
    read = {
        operand
        for index in group.members
        if index not in program.forward
        for operand in program.ops[index].operands
        if operand in program.per_sample_values
    }
    kept = [value for value in read if (at := program.producer(value)) is None or at in program.forward]
    return sum(-(-size_bytes(tensor_of(value)) // program.batch_size) for value in kept)


def edge_values(assignment: Assignment) -> dict[tuple[int, int], list[SSAValue]]:
    """The values that go from one kernel to another, by the positions of the two in `assignment.groups`.

    What is the same in every step travels with the program, not between kernels, whoever makes it.
    """
    program = assignment.program
    position = {id(group): index for index, group in enumerate(assignment.groups)}
    found: dict[tuple[int, int], list[SSAValue]] = {}
    for index in range(len(program.ops)):
        reader = position[id(assignment.owner(index))]
        for operand in program.ops[index].operands:
            producer = program.producer(operand)
            if producer is None or producer in program.constant:
                continue
            writer = position[id(assignment.owner(producer))]
            if writer != reader and operand not in found.setdefault((writer, reader), []):
                found[writer, reader].append(operand)
    return found


def samples_in_flight(
    assignment: Assignment, edges: Mapping[tuple[int, int], Sequence[SSAValue]]
) -> list[int]:
    """For each kernel the samples between its forward and its backward pass.

    A stage passes a sample on after one of its rows, so it delays by 1 / rows of a sample. The backward
    pass comes after all stages on the longest way to the end, there and back.
    """
    program = assignment.program
    delay = [Fraction(1, rows_per_sample(assignment, group)) for group in assignment.groups]
    order = [_first_forward(program, group) for group in assignment.groups]
    later: list[Fraction] = [Fraction(0)] * len(delay)
    forward_edges = [
        (a, b)
        for (a, b), values in edges.items()
        if order[a] < order[b] and any(program.producer(value) in program.forward for value in values)
    ]
    for a, b in sorted(forward_edges, key=lambda edge: -order[edge[0]]):
        later[a] = max(later[a], later[b] + delay[b])
    return [math.ceil(1 + 2 * after) for after in later]


def _first_forward(program: Program, group: Group) -> int:
    return min((index for index in group.members if index in program.forward), default=len(program.ops))


def _matmul_sizes(assignment: Assignment, group: Group) -> tuple[int, int, int]:
    """Rows per sample, inputs, outputs of the product that anchors a kernel."""
    program = assignment.program
    op = program.ops[group.anchor]
    if isinstance(op, ConvolutionOp):
        return convolution_sizes(op, program.batch_size)
    result = shape_of(op.results[0])
    batch = program.batch_size
    total = elements(op.results[0])
    position = weight_operand(assignment, group.anchor)
    outputs = result[-2] if position == 0 else result[-1]
    left = op.operands[0]
    inner = elements(left) // max(1, total // result[-1]) if total else 1
    if total == 0:
        return 1, max(1, inner), max(1, outputs)
    return max(1, -(-total // max(1, outputs) // batch)), max(1, inner), max(1, outputs)


def _matmul(assignment: Assignment, group: Group) -> dict[str, int]:
    program = assignment.program
    rows, inputs, outputs = _matmul_sizes(assignment, group)
    products = [index for index in group.members if program.mnemonics[index] in _PRODUCTS]
    rest = group.members - set(products)
    streamed = op_work(program, rest - group.updates)
    return {
        "rows": rows,
        "inputs": inputs,
        "outputs": outputs,
        "passes": min(_MAX_PASSES, len(products)),
        "element_bytes": element_bytes(program.ops[group.anchor].operands[0]),
        "epilogue_millicycles": -(-streamed // program.batch_size),
        "step_millicycles": op_work(program, group.updates),
        "reload": int(weight_operand(assignment, group.anchor) is None),
    }


def _loop(assignment: Assignment, group: Group) -> dict[str, int]:
    program = assignment.program
    batch = program.batch_size
    samples = {index for index in group.members - group.updates if program.is_per_sample(index)}
    widest = _widest(program, group)
    border = _border(program, group)
    if widest is None:
        rows, row_elements = 1, max(1, max((program.elements(index) for index in group.members), default=1))
        if group.family == "control":
            row_elements = 1
    else:
        rows, row_elements = rows_of(widest, batch)
    work = op_work(program, samples) + sum(
        stream_millicycles(value) for value in border if widest is not None
    )
    return {
        "rows": rows,
        "row_elements": row_elements,
        "starts": int(bool(samples & program.forward)) + int(bool(samples - program.forward)),
        "reductions": sum(reductions(program, index) for index in samples),
        "work_millicycles": -(-work // batch),
        "step_millicycles": op_work(program, group.members - samples),
        "streamed_elements": max((-(-elements(value) // batch) for value in border), default=0),
        "element_bytes": 4 if widest is None else element_bytes(widest),
    }


def op_work(program: Program, indices: Iterable[int]) -> int:
    """Thousandths of a cycle of some ops in a step, products left out."""
    return sum(
        op_millicycles(program, index) for index in indices if program.mnemonics[index] not in _PRODUCTS
    )


def _widest(program: Program, group: Group) -> SSAValue | None:
    """The largest per-sample tensor that a kernel reads or writes."""
    values = [
        value
        for index in sorted(group.members - group.updates)
        for value in (*program.ops[index].operands, *program.ops[index].results)
        if value in program.per_sample_values
    ]
    return max(values, key=elements, default=None)


def _border(program: Program, group: Group) -> list[SSAValue]:
    """Tensors (no scalars, no state) that enter or leave a kernel."""
    entering = {
        operand: None
        for index in sorted(group.members)
        for operand in program.ops[index].operands
        if program.producer(operand) not in group.members and operand not in program.state
    }
    leaving = {
        result: None
        for index in sorted(group.members)
        for result in program.ops[index].results
        if any(user not in group.members for user in program.users(result)) or result in program.outputs
    }
    return [value for value in (*entering, *leaving) if elements(value) > 1]
