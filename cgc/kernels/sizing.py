"""Parameters of cost functions, computed from the ops of kernels: rows, work, memory, samples in flight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from xdsl.ir import SSAValue

from cgc.cirh.ops import ops_where
from cgc.cirh.shape import ConstOp
from cgc.cirh.softmax import CrossEntropyOp
from cgc.cirh.types import numpy_dtype, shape_of, size_bytes, tensor_of
from cgc.kernels.assignment import Assignment, Group, weight_operand
from cgc.kernels.coefficients import coefficient
from cgc.kernels.cost import image_lines, line_cycles
from cgc.kernels.program import PRODUCTS, Program, elements
from cs_toolkit.step import MODEL_STATE

_MAX_PASSES = 3

# Rows per sample, inputs and outputs of a product.
Sizes = Callable[[Assignment, Group], tuple[int, int, int]]

# Value of `Family.fastest` in families that work on rows.
ROW_LIMIT_TEXT = (
    ", {row_elements:,} elements a row: its start, and the least that a PE works on, remain however many PEs "
    "share it."
)

# Moves and casts, which cost no cycles: elements are moved and converted while they stream by.
FREE_IN_STREAM = ops_where(lambda op: not op.TRAITS.work.computes or op.TRAITS.elements.relabels)


def parameters(assignment: Assignment, group: Group) -> dict[str, int]:
    """Return the arguments of the cost function of a kernel's family.

    Args:
        assignment: all ops with their kernels.
        group: the kernel.
    """
    stash = stash_bytes_per_sample(assignment, group)
    if group.generated:  # the cost follows from its loop nests
        return {"batch": assignment.program.batch_size, "stash_bytes": stash}
    return {
        "batch": assignment.program.batch_size,
        "resident_bytes": resident_bytes(assignment, group),
        "stash_bytes": stash,
        **group.family.figures(assignment, group),
        **(_lines(assignment.program, group) if group.family.has_images else {}),
    }


def edge_values(assignment: Assignment) -> dict[tuple[int, int], list[SSAValue]]:
    """Return the values that stream between kernels, by the positions of both in `assignment.groups`."""
    # Constants are left out: they are loaded with the program, whichever kernel computes them.
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
    """Return for each kernel the samples between its forward and its backward pass, at full throughput."""
    program = assignment.program
    # A kernel sends a sample on after one of its rows: it holds back 1 / rows of a sample. An attention waits
    # for the keys of later rows, unless a mask hides them. A kernel with one row per sample, such as a
    # classifier after a sequence, is as large as its weights need and idle long before the next sample: it
    # holds back no more than one row of the kernel with most rows.
    rows = [group.family.rows(assignment, group) for group in assignment.groups]
    max_rows = max(rows)
    delays = [group.family.delay(group) for group in assignment.groups]
    delay = [
        Fraction(1, row_count if row_count > 1 else max_rows) if own_delay is None else Fraction(own_delay)
        for own_delay, row_count in zip(delays, rows, strict=True)
    ]
    order = [_first_forward(program, group) for group in assignment.groups]
    longest: list[Fraction] = [Fraction(0)] * len(delay)
    forward_edges = [
        (a, b)
        for (a, b), values in edges.items()
        if order[a] < order[b] and any(program.producer(value) in program.forward for value in values)
    ]
    # The backward pass of a kernel starts after the longest path from it to the end and back.
    for a, b in sorted(forward_edges, key=lambda edge: -order[edge[0]]):
        longest[a] = max(longest[a], longest[b] + delay[b])
    return [float(1 + 2 * length) for length in longest]


def _first_forward(program: Program, group: Group) -> int:
    """Return the position of a kernel's first forward op on samples, after casts of weights."""
    working = (index for index in group.members & program.forward if program.is_per_sample(index))
    return min(working, default=len(program.ops))


def product_sizes(assignment: Assignment, group: Group) -> tuple[int, int, int]:
    """Return rows per sample, inputs and outputs of the matrix product that anchors a kernel."""
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
    """Return the rows of a sample that stream through a matrix product."""
    return product_sizes(assignment, group)[0]


def product_figures(assignment: Assignment, group: Group, sizes: Sizes = product_sizes) -> dict[str, int]:
    """Return the parameters of `cgc.kernels.matmul_cost`, with the sizes of the product from `sizes`."""
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
        "loss_outputs": int(_feeds_loss(assignment, group)),
        "lookup": group.sizes.get("lookup", 0),
        "update_bytes": update_bytes(assignment, group),
    }


def _epilogue(program: Program, group: Group) -> set[int]:
    """Return bias, activation and their gradients; casts, lookups and the like cost no cycles."""
    return {
        index
        for index in group.members - group.updates
        if program.is_per_sample(index) and program.kinds[index] not in FREE_IN_STREAM | PRODUCTS
    }


def _lines(program: Program, group: Group) -> dict[str, int]:
    """Return the image lines of a sample and their length, for the slowest stream of a kernel."""
    streams = (
        image_lines(shape_of(value), program.batch_size)
        for value in _border(program, group)
        if value in program.per_sample_values
    )
    return max(streams, key=lambda sizes: line_cycles({**sizes, "element_bytes": 2}), default={})


def _feeds_loss(assignment: Assignment, group: Group) -> bool:
    """Return True if a loss reads a result of the forward pass."""
    program = assignment.program
    return any(
        isinstance(program.ops[user], CrossEntropyOp)
        for index in group.members & program.forward
        for user in program.user_indices(index)
        if assignment.owner(user) is not group
    )


def widest_rows(assignment: Assignment, group: Group) -> int:
    """Return the rows of a sample of the largest tensor that a kernel reads or writes."""
    value = _widest(assignment.program, group)
    return 1 if value is None else rows_of(value, assignment.program.batch_size)[0]


def row_figures(assignment: Assignment, group: Group, *, one_way: bool = False) -> dict[str, int]:
    """Return the parameters of `cgc.kernels.row_cost`.

    Args:
        assignment: all ops with their kernels.
        group: the kernel.
        one_way: the coefficients of the family are those of its only pass.
    """
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
    """Return the parameters of `cgc.kernels.loop_cost`."""
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
    """Return the work of some ops in a step without products, in thousandths of a cycle."""
    return sum(op_millicycles(program, index) for index in indices if program.kinds[index] not in PRODUCTS)


def _widest(program: Program, group: Group) -> SSAValue | None:
    """Return the largest per-sample tensor that a kernel reads or writes."""
    values = [
        value
        for index in sorted(group.members - group.updates)
        for value in (*program.ops[index].operands, *program.ops[index].results)
        if value in program.per_sample_values
    ]
    return max(values, key=elements, default=None)


def _border(program: Program, group: Group) -> list[SSAValue]:
    """Return the tensors (no scalars, no state) that enter or leave a kernel."""
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


def resident_bytes(assignment: Assignment, group: Group) -> int:
    """Return the bytes of a kernel's state, of a gradient for each updated tensor, and of large constants."""
    program = assignment.program
    total = sum(_constant_bytes(program, index) for index in group.members)
    for state in _own_state(program, group):
        total += size_bytes(tensor_of(state))
        if group.updates and program.state[state].startswith(MODEL_STATE) and state in program.replacements:
            total += elements(state) * _gradient_element_bytes(program, group, state)
    return total


def update_bytes(assignment: Assignment, group: Group) -> int:
    """Return the bytes of a kernel's state that only the weight update reads: moments, momentum."""
    program = assignment.program
    return sum(
        size_bytes(tensor_of(state))
        for state in _own_state(program, group)
        if group.updates.issuperset(program.users(state))
    )


def gradient_bytes(assignment: Assignment, group: Group) -> int:
    """Return the bytes of a kernel's sums over the samples of a step: gradients, moments of a batch norm."""
    program = assignment.program
    if program.mode != "train":
        return 0
    return sum(
        elements(state) * _gradient_element_bytes(program, group, state)
        for state in _own_state(program, group)
        if program.state[state].startswith(MODEL_STATE)
        and program.replacements.get(state, state) is not state
    )


def _own_state(program: Program, group: Group) -> list[SSAValue]:
    """Return the state tensors of a kernel; one that several kernels read belongs to its first reader."""
    read = {operand for index in group.members for operand in program.ops[index].operands}
    return [state for state in read & program.state.keys() if program.users(state)[0] in group.members]


def _gradient_element_bytes(program: Program, group: Group, state: SSAValue) -> int:
    """Return the element size of a gradient while it is summed over the samples of a step."""
    # A product sums in the precision of its operands. Sums of single rows, such as those of a table, have the
    # precision of the state.
    sums = [
        element_bytes(result)
        for index in group.members
        if program.kinds[index] in PRODUCTS
        for result in program.ops[index].results
        if result not in program.per_sample_values and elements(result) == elements(state)
    ]
    return min(sums, default=element_bytes(state))


def _constant_bytes(program: Program, index: int) -> int:
    """Return the bytes of a constant; a splat is stored as one value and costs nothing."""
    op = program.ops[index]
    if not isinstance(op, ConstOp) or op.splat_value() is not None:
        return 0
    return size_bytes(tensor_of(op.result))


def stash_bytes_per_sample(assignment: Assignment, group: Group) -> int:
    """Return the bytes per sample of the forward values that a kernel stores for backward ops.

    Kernels without weights store nothing: the kernel before an activation stores the value that its gradient
    reads. If this is the input of the activation, the output is recomputed from it. Scores of an attention
    are recomputed from queries and keys.
    """
    if not group.family.stores_operands:
        return 0
    program = assignment.program
    readers: dict[SSAValue, set[int]] = {}
    for index in sorted(group.members - program.forward):
        for operand in program.ops[index].operands:
            readers.setdefault(operand, set()).add(index)
    for value in _results(program, group):
        if users := _readers_in_activations(assignment, value):
            readers.setdefault(value, set()).update(users)
    stashed = [
        value
        for value in readers
        if value in program.per_sample_values
        and ((producer := program.producer(value)) is None or producer in program.forward)
        and not _is_scores(group, value)
        and not _is_recomputed(assignment, value)
    ]
    return sum(_stash_bytes(program, value, readers[value]) for value in stashed)


def _results(program: Program, group: Group) -> list[SSAValue]:
    return [
        result for index in sorted(group.members & program.forward) for result in program.ops[index].results
    ]


def _is_scores(group: Group, value: SSAValue) -> bool:
    """Return True if a tensor of an attention is as large as its scores."""
    sizes = group.sizes
    return shape_of(value)[-2:] == (sizes.get("rows"), sizes.get("keys")) and len(shape_of(value)) > 2


def _is_recomputed(assignment: Assignment, value: SSAValue) -> bool:
    """Return True if an activation's kernel recomputes a tensor from the value stored for its gradient."""
    program = assignment.program
    producer = program.producer(value)
    owner = None if producer is None else assignment.owner(producer)
    if owner is None or not owner.family.recomputes_results:
        return False
    read = {operand for index in owner.members & program.forward for operand in program.ops[index].operands}
    return any(_readers_in_activations(assignment, operand) for operand in read - {value})


def _readers_in_activations(assignment: Assignment, value: SSAValue) -> set[int]:
    """Return the backward ops that read a tensor in kernels of activations."""
    program = assignment.program
    return {
        user
        for user in program.users(value)
        if user not in program.forward
        and (owner := assignment.owner(user)) is not None
        and owner.family.recomputes_results
    }


def _stash_bytes(program: Program, value: SSAValue, readers: set[int]) -> int:
    """Return the bytes per sample of one tensor; an element is one bit if readers only need its sign."""
    tensor = tensor_of(value)
    signs = all(program.ops[reader].TRAITS.signs_only for reader in readers)
    if signs or str(tensor.element_type) == "i1":
        return -(-elements(value) // (8 * program.batch_size))
    return -(-size_bytes(tensor) // program.batch_size)


def op_millicycles(program: Program, index: int) -> int:
    """Return the work of an op in a step in thousandths of a cycle, over all PEs; not for matrix products."""
    op = program.ops[index]
    wide = max((element_bytes(value) for value in op.results), default=2) > 2
    cycles = sum(
        times * coefficient(kind) * (coefficient("wide_element_factor") if wide and kind == "simple" else 1)
        for kind, times in op.work.kinds.items()
    )
    return math.ceil(1000 * cycles * op.worked_elements())


def stream_millicycles(value: SSAValue) -> int:
    """Return the time to receive or send a value, in thousandths of a cycle."""
    wide = coefficient("wide_element_factor") if element_bytes(value) > 2 else 1.0
    return math.ceil(1000 * coefficient("stream") * wide * elements(value))


def element_bytes(value: SSAValue) -> int:
    """Return the bytes of one element."""
    return numpy_dtype(tensor_of(value).element_type).itemsize


def rows_of(value: SSAValue, batch_size: int) -> tuple[int, int]:
    """Return the rows per sample of a per-sample tensor, and the elements of a row.

    `[B * t, d]` has t rows of d, `[B, t, d...]` has t rows of the product of d, `[B, d]` one row of d.
    """
    shape = shape_of(value)
    leading, rest = max(1, shape[0] // batch_size) if shape else 1, shape[1:]
    if len(rest) >= 2:
        leading, rest = leading * rest[0], rest[1:]
    return max(1, leading), max(1, math.prod(rest))
