"""Parameters of a kernel's cost function, from the tensors of its ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from xdsl.ir import SSAValue

from cgc.cirh.convolution import ConvolutionOp
from cgc.cirh.nn import CrossEntropyOp
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.coefficients import coefficient
from cgc.kernels.convolution import convolution_sizes
from cgc.kernels.fully_connected import weight_operand
from cgc.kernels.memory import resident_bytes, stash_bytes_per_sample, update_bytes
from cgc.kernels.program import PRODUCTS, Program, elements
from cgc.kernels.stream_cost import image_lines, line_cycles
from cgc.kernels.work import (
    ON_THE_WAY,
    element_bytes,
    op_millicycles,
    rows_of,
    stream_millicycles,
)

MATMUL_FAMILIES = frozenset({"fully_connected", "matmul", "convolution"})
ROW_FAMILIES = frozenset({"layer_norm", "nlin", "add", "dropout", "pos_encoding", "loss", "embedding"})
_ONE_WAY = frozenset({"add", "pos_encoding"})
"""Kernels whose figures are those of one pass; they have no other."""

_IMAGE_FAMILIES = frozenset(
    {"convolution", "normalization", "pooling", "data_movement", "add", "nlin", "loss"}
)
_MAX_PASSES = 3


def parameters(assignment: Assignment, group: Group) -> dict[str, int]:
    """The parameters that the family's cost function reads.

    Args:
        assignment: all ops with their kernels.
        group: the kernel.
    """
    stash = stash_bytes_per_sample(assignment, group)
    if group.generated:  # its loop nests tell the rest
        return {"batch": assignment.program.batch_size, "stash_bytes": stash}
    common = {
        "batch": assignment.program.batch_size,
        "resident_bytes": resident_bytes(assignment, group),
        "stash_bytes": stash,
    }
    if group.family in MATMUL_FAMILIES:
        return {**common, **_matmul(assignment, group), "update_bytes": update_bytes(assignment, group)}
    if group.family == "attention":
        return {**common, **_attention(assignment, group), "update_bytes": update_bytes(assignment, group)}
    figures = _row if group.family in ROW_FAMILIES else _loop
    return {**common, **figures(assignment, group), **_lines(assignment.program, group)}


def rows_per_sample(assignment: Assignment, group: Group) -> int:
    """Rows of a sample that stream through a kernel one after the other."""
    if group.family in MATMUL_FAMILIES:
        return _matmul_sizes(assignment, group)[0]
    if group.family == "attention":
        return group.sizes["rows"]
    value = _widest(assignment.program, group)
    return 1 if value is None else rows_of(value, assignment.program.batch_size)[0]


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
    rows = [rows_per_sample(assignment, group) for group in assignment.groups]
    most = max(rows)
    return [
        Fraction(coefficient("attention_delay"))
        if group.family == "attention" and not group.sizes["causal"]
        else Fraction(1, own if own > 1 else most)
        for group, own in zip(assignment.groups, rows, strict=True)
    ]


def _first_forward(program: Program, group: Group) -> int:
    """Position of a kernel's first op on samples in the forward pass; weights are cast long before it."""
    working = (index for index in group.members & program.forward if program.is_per_sample(index))
    return min(working, default=len(program.ops))


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
        **_image(program, group, rows),
    }


def _epilogue(program: Program, group: Group) -> set[int]:
    """Bias, activation and their gradients; casts, lookups and the like are done on the way."""
    return {
        index
        for index in group.members - group.updates
        if program.is_per_sample(index) and program.kinds[index] not in ON_THE_WAY | PRODUCTS
    }


def _image(program: Program, group: Group, rows: int) -> dict[str, int]:
    """Of a convolution: positions of a line of the image, which stream at one start, and lines to share."""
    op = program.ops[group.anchor]
    if not isinstance(op, ConvolutionOp):
        return {}
    line = min(rows, max(1, max(shape_of(value)[-2] for value in (op.lhs, op.result))))
    return {"rows_per_start": line, "copies": -(-rows // line), **_lines(program, group)}


def _lines(program: Program, group: Group) -> dict[str, int]:
    """Lines of the images of a sample and elements of a line, of the slowest stream to or from a kernel."""
    if group.family not in _IMAGE_FAMILIES:
        return {}
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
        owner is not None and owner.family == "loss" and isinstance(program.ops[user], CrossEntropyOp)
        for index in group.members & program.forward
        for user in program.user_indices(index)
        if (owner := assignment.owner(user)) is not group
    )


def _attention(assignment: Assignment, group: Group) -> dict[str, int]:
    return {**group.sizes, "step_millicycles": op_work(assignment.program, group.updates)}


def _row(assignment: Assignment, group: Group) -> dict[str, int]:
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
        "passes": 2 if samples - program.forward or group.family in _ONE_WAY else 1,
        "element_bytes": min((element_bytes(value) for value in streams), default=4),
        "step_millicycles": op_work(program, group.updates),
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
