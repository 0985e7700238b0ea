"""Parameters of a kernel's cost function, from the tensors of its ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from xdsl.ir import SSAValue

from cgc.cirh.softmax import CrossEntropyOp
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.memory import resident_bytes, stash_bytes_per_sample, update_bytes
from cgc.kernels.products import weight_operand
from cgc.kernels.program import PRODUCTS, Program, elements
from cgc.kernels.stream_cost import image_lines, line_cycles
from cgc.kernels.work import (
    ON_THE_WAY,
    element_bytes,
    op_millicycles,
    rows_of,
    stream_millicycles,
)

_MAX_PASSES = 3
Sizes = Callable[[Assignment, Group], tuple[int, int, int]]
"""Rows per sample, inputs and outputs of a product."""

ROWS_AT_THEIR_FASTEST = (
    ", {row_elements:,} elements a row: its start, and the least that a PE works on, remain however many PEs "
    "share it."
)
"""`Family.fastest` of families that work on rows."""


def parameters(assignment: Assignment, group: Group) -> dict[str, int]:
    """The parameters that the family's cost function reads.

    Args:
        assignment: all ops with their kernels.
        group: the kernel.
    """
    stash = stash_bytes_per_sample(assignment, group)
    if group.generated:  # its loop nests tell the rest
        return {"batch": assignment.program.batch_size, "stash_bytes": stash}
    return {
        "batch": assignment.program.batch_size,
        "resident_bytes": resident_bytes(assignment, group),
        "stash_bytes": stash,
        **group.family.figures(assignment, group),
        **(_lines(assignment.program, group) if group.family.has_images else {}),
    }


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
) -> list[float]:
    """For each kernel the samples between its forward and its backward pass, where samples follow closely.

    A stage passes a sample on after one of its rows, so it delays by 1 / rows of a sample. The backward pass
    comes after all stages on the longest way to the end, there and back.
    """
    program = assignment.program
    delay = _delays(assignment)
    order = [_first_forward(program, group) for group in assignment.groups]
    later: list[Fraction] = [Fraction(0)] * len(delay)
    forward_edges = [
        (a, b)
        for (a, b), values in edges.items()
        if order[a] < order[b] and any(program.producer(value) in program.forward for value in values)
    ]
    for a, b in sorted(forward_edges, key=lambda edge: -order[edge[0]]):
        later[a] = max(later[a], later[b] + delay[b])
    return [float(1 + 2 * after) for after in later]


def _delays(assignment: Assignment) -> list[Fraction]:
    """Samples that each kernel holds back in one direction.

    An attention waits for the keys of later rows, but where a mask hides these its rows go out as they come.
    A kernel of one row a sample, such as a classifier behind a sequence, is as large as its weights need and
    done long before the next sample comes: it holds back no more than a row of the longest kernel.
    """
    rows = [group.family.rows(assignment, group) for group in assignment.groups]
    most = max(rows)
    held = [group.family.delay(group) for group in assignment.groups]
    return [
        Fraction(1, own if own > 1 else most) if waits is None else Fraction(waits)
        for waits, own in zip(held, rows, strict=True)
    ]


def _first_forward(program: Program, group: Group) -> int:
    """Position of a kernel's first op on samples in the forward pass; weights are cast long before it."""
    working = (index for index in group.members & program.forward if program.is_per_sample(index))
    return min(working, default=len(program.ops))


def product_sizes(assignment: Assignment, group: Group) -> tuple[int, int, int]:
    """Rows per sample, inputs, outputs of the matrix product that anchors a kernel."""
    program = assignment.program
    op = program.ops[group.anchor]
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


def product_rows(assignment: Assignment, group: Group) -> int:
    """Rows of a sample that stream through a matrix product."""
    return product_sizes(assignment, group)[0]


def product_figures(assignment: Assignment, group: Group, sizes: Sizes = product_sizes) -> dict[str, int]:
    """Parameters of `cgc.kernels.matmul_cost`; `sizes` are those of the product."""
    program = assignment.program
    rows, inputs, outputs = sizes(assignment, group)
    products = [index for index in group.members if program.kinds[index] in PRODUCTS]
    streamed = op_work(program, _epilogue(program, group))
    return {
        "rows": rows,
        "inputs": inputs,
        "outputs": outputs,
        "passes": min(_MAX_PASSES, len(products)),
        "element_bytes": element_bytes(program.ops[group.anchor].operands[0]),
        "epilogue_millicycles": -(-streamed // program.batch_size),
        "step_millicycles": op_work(program, group.updates),
        "reload": int(weight_operand(assignment, group.anchor) is None),
        "loss_outputs": int(_feeds_a_loss(assignment, group)),
        "lookup": group.sizes.get("lookup", 0),
        "update_bytes": update_bytes(assignment, group),
    }


def _epilogue(program: Program, group: Group) -> set[int]:
    """Bias, activation and their gradients; casts, lookups and the like are done on the way."""
    return {
        index
        for index in group.members - group.updates
        if program.is_per_sample(index) and program.kinds[index] not in ON_THE_WAY | PRODUCTS
    }


def _lines(program: Program, group: Group) -> dict[str, int]:
    """Lines of the images of a sample and elements of a line, of the slowest stream to or from a kernel."""
    streams = (
        image_lines(shape_of(value), program.batch_size)
        for value in _border(program, group)
        if value in program.per_sample_values
    )
    return max(streams, key=lambda sizes: line_cycles({**sizes, "element_bytes": 2}), default={})


def _feeds_a_loss(assignment: Assignment, group: Group) -> bool:
    """Whether a loss reads a result of the forward pass, at once or through casts and reshapes."""
    program = assignment.program
    return any(
        isinstance(program.ops[user], CrossEntropyOp)
        for index in group.members & program.forward
        for user in program.user_indices(index)
        if assignment.owner(user) is not group
    )


def widest_rows(assignment: Assignment, group: Group) -> int:
    """Rows of a sample of the largest tensor that a kernel reads or writes."""
    value = _widest(assignment.program, group)
    return 1 if value is None else rows_of(value, assignment.program.batch_size)[0]


def row_figures(assignment: Assignment, group: Group, *, one_way: bool = False) -> dict[str, int]:
    """Parameters of `cgc.kernels.row_cost`; with `one_way` the figures are those of the only pass."""
    program = assignment.program
    widest = _widest(program, group)
    streams = (
        [] if widest is None else [v for v in _border(program, group) if elements(v) == elements(widest)]
    )
    rows, row_elements = (
        (1, program.elements(group.anchor)) if widest is None else rows_of(widest, program.batch_size)
    )
    samples = {index for index in group.members - group.updates if program.is_per_sample(index)}
    return {
        "rows": rows,
        "row_elements": max(1, row_elements),
        "passes": 2 if samples - program.forward or one_way else 1,
        "element_bytes": min((element_bytes(value) for value in streams), default=4),
        "step_millicycles": op_work(program, group.updates),
    }


def loop_figures(assignment: Assignment, group: Group) -> dict[str, int]:
    """Parameters of `cgc.kernels.loop_cost`."""
    program = assignment.program
    batch = program.batch_size
    samples = {index for index in group.members - group.updates if program.is_per_sample(index)}
    widest = _widest(program, group)
    border = _border(program, group)
    if widest is None:
        rows, row_elements = 1, max(1, max((program.elements(index) for index in group.members), default=1))
    else:
        rows, row_elements = rows_of(widest, batch)
    work = op_work(program, samples) + sum(
        stream_millicycles(value) for value in border if widest is not None
    )
    return {
        "rows": rows,
        "row_elements": row_elements,
        "starts": int(bool(samples & program.forward)) + int(bool(samples - program.forward)),
        "reductions": sum(program.ops[index].row_reductions() for index in samples),
        "work_millicycles": -(-work // batch),
        "step_millicycles": op_work(program, group.members - samples),
        "streamed_elements": max((-(-elements(value) // batch) for value in border), default=0),
        "element_bytes": 4 if widest is None else element_bytes(widest),
    }


def op_work(program: Program, indices: Iterable[int]) -> int:
    """Thousandths of a cycle of some ops in a step, products left out."""
    return sum(op_millicycles(program, index) for index in indices if program.kinds[index] not in PRODUCTS)


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
