"""Attention layers: projections, softmax of the products, output projection, and all of their gradients.

The blocks share one rectangle, as in published reports (GPT-2 small: projections of 24 x 96 PEs, output
24 x 32, forward core 1536, backward core 3072 PEs in 52 x 169):

    +-----------------------+----------+      projections   a x 3b   rows of length `inputs`
    |      projections      |          |      output        a x b
    +--------+--------------+ backward |      forward core  a x f    the products with keys and values
    | output | forward core |   core   |      backward core 2a x f   twice as many products
    +--------+--------------+----------+

with 9 columns and 4 lines of adapters and fans. The rest of the rectangle is idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.softmax import AttentionGradOp, AttentionOp
from cgc.cirh.types import AnyArray, shape_of
from cgc.kernels.assignment import (
    Assignment,
    Family,
    Group,
    claim_epilogue,
    claim_products,
    is_broadcast_or_constant,
    single,
    weight_operand,
)
from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import (
    Configurations,
    Floats,
    Ints,
    ceil_div,
    line_ladder,
    pool_memory,
    useful_splits,
    whole_cycles,
)
from cgc.kernels.cost import pass_share, tile_cycles, tile_wire_cycles, width_factor
from cgc.kernels.program import PASS_THROUGH, PRODUCTS, RELABELS, Program, elements
from cgc.kernels.sizing import element_bytes, op_work, update_bytes
from cgc.passes.constant_fold import constant_splat, evaluate_value

# Ops on the scores between the two products of an attention that is not one op.
_SCORE_OPS = RELABELS | frozenset(
    {ops.AddOp, ops.SubOp, ops.MulOp, ops.DivOp, ops.MaxOp, ops.MinOp, ops.ClampOp}
    | {ops.SelectOp, ops.SoftmaxOp}
)
# Ops between a projection and the core: bias, scale, and slices of a joint projection.
_PROJECTION_PATH = PASS_THROUGH | frozenset(
    {ops.BiasAddOp, ops.AddOp, ops.MulOp, ops.SliceOp, ops.StridedSliceOp, ops.SplitOp}
)
# Backward ops that combine the gradients of queries, keys and values.
_COMBINING = PASS_THROUGH | frozenset(
    {ops.AddOp, ops.MulOp, ops.DivOp, ops.ConcatOp, ops.PadOp, ops.ReduceOp}
)


@dataclass(frozen=True)
class _Core:
    """The core of an attention: its anchor, operands and result.

    Attributes:
        anchor: position of the attention, or of the softmax if it was not fused.
        query: `[..., L, D]`.
        key: `[..., S, D]`.
        value: `[..., S, E]`.
        context: `[..., L, E]`.
        members: ops that belong to it.
    """

    anchor: int
    query: SSAValue
    key: SSAValue
    value: SSAValue
    context: SSAValue
    members: frozenset[int]


def match_attention(assignment: Assignment) -> None:
    """Open a kernel for each attention with its projections, and for each softmax between two products."""
    program = assignment.program
    for index, kind in enumerate(program.kinds):
        if not assignment.is_free(index) or index not in program.forward:
            continue
        core = None
        if kind is ops.AttentionOp:
            core = _core_of_op(program, index)
        elif kind is ops.SoftmaxOp:
            core = _match_unfused(assignment, index)
        if core is not None:
            _claim_layer(assignment, core)


def _core_of_op(program: Program, index: int) -> _Core:
    """Return the core of a fused attention: the op, its gradient, and the ops of its random mask."""
    op = program.ops[index]
    assert isinstance(op, AttentionOp)
    members = {index}
    for user in program.users(op.query):
        gradient = program.ops[user]
        if isinstance(gradient, AttentionGradOp) and gradient.key is op.key and gradient.value is op.value:
            members.add(user)
    if op.keep is not None:
        members |= _mask_ops(program, op.keep, members)
    return _Core(index, op.query, op.key, op.value, op.context, frozenset(members))


def _mask_ops(program: Program, mask: SSAValue, users: set[int]) -> set[int]:
    """Return the ops that compute a random mask, and the random numbers, if nothing else reads them."""
    found: set[int] = set()
    pending = [mask]
    while pending:
        value = pending.pop()
        index = program.producer(value)
        if index is None or index in found or elements(value) != elements(mask) or index in program.constant:
            continue
        if set(program.user_indices(index)) <= users | found:
            found.add(index)
            pending += program.ops[index].operands
    return found


def _match_unfused(assignment: Assignment, index: int) -> _Core | None:
    """Match a softmax between two products of activations."""
    program = assignment.program
    scores = shape_of(program.ops[index].results[0])
    # A softmax of a matrix is a classifier: scores have queries, keys, and heads or samples.
    if len(scores) < 3:
        return None
    before = _find_product(assignment, index, scores, forward=False)
    after = _find_product(assignment, index, scores, forward=True)
    if before is None or after is None:
        return None
    query, key = program.ops[before].operands
    probabilities, value = program.ops[after].operands
    if shape_of(probabilities) != scores:
        return None
    members = _ops_on_scores(assignment, {before, index, after}, scores)
    return _Core(index, query, key, value, program.ops[after].results[0], frozenset(members))


def _find_product(assignment: Assignment, start: int, scores: tuple[int, ...], forward: bool) -> int | None:
    """Return the product before or after elementwise ops on the scores; None if there is none."""
    program = assignment.program
    pending, seen = [start], {start}
    while pending:
        index = pending.pop(0)
        neighbors = program.user_indices(index) if forward else program.producers(index)
        for other in neighbors:
            if other in seen or other not in program.forward or not assignment.is_free(other):
                continue
            seen.add(other)
            if program.kinds[other] is ops.MatMulOp and weight_operand(assignment, other) is None:
                return other
            if program.kinds[other] in _SCORE_OPS and shape_of(program.ops[other].results[0]) == scores:
                pending.append(other)
    return None


def _ops_on_scores(assignment: Assignment, core: set[int], scores: tuple[int, ...]) -> set[int]:
    """Return the core and all free ops that are connected to it by tensors of the shape of the scores."""
    program = assignment.program
    found, pending = set(core), list(core)
    while pending:
        index = pending.pop()
        op = program.ops[index]
        neighbors = [
            user
            for result in op.results
            if shape_of(result) == scores and not is_broadcast_or_constant(program, index)
            for user in program.users(result)
        ]
        neighbors += [
            producer
            for operand in op.operands
            if shape_of(operand) == scores
            and (producer := program.producer(operand)) is not None
            and not is_broadcast_or_constant(program, producer)
        ]
        new = {other for other in neighbors if other not in found and assignment.is_free(other)}
        found |= new
        pending += new
    return found


def _claim_layer(assignment: Assignment, core: _Core) -> None:
    """Open a kernel for a core, and claim projections, masks, gradients and updates."""
    group = assignment.open(ATTENTION, core.anchor)
    read = [operand for index in core.members for operand in assignment.program.ops[index].operands]
    # A constant mask does not stream: it is part of the first kernel that reads it.
    masks = assignment.program.constants_of(read)
    for index in sorted(core.members | masks):
        assignment.claim(group, index)
    projections = [
        _claim_projection(assignment, group, value) for value in (core.query, core.key, core.value)
    ]
    outputs = _claim_output(assignment, group, core.context)
    _claim_input_moves(assignment, group)
    _claim_combining_ops(assignment, group)
    program = assignment.program
    *leading, rows, depth = shape_of(core.query)
    heads = max(1, math.prod(leading) // program.batch_size)
    products = {product for product in projections if product is not None}
    first = min(products, default=None)
    inputs = shape_of(program.ops[first].operands[0])[-1] if first is not None else heads * depth
    trained = any(index not in program.forward for index in group.members - group.updates)
    keys = shape_of(core.key)[-2]
    others = [value for value in read if value not in (core.query, core.key, core.value)]
    group.sizes = {
        "rows": max(1, rows),
        "keys": max(1, keys),
        "causal": int(rows == keys and is_causal(program, core.members, others, rows)),
        "heads": heads,
        "inputs": max(1, inputs),
        "width": max(1, heads * depth),
        "projections": sum(product is not None for product in projections),
        "outputs": outputs,
        "passes": 3 if trained else 1,
        "element_bytes": element_bytes(core.query),
    }


def _claim_projection(assignment: Assignment, group: Group, value: SSAValue) -> int | None:
    """Claim the projection that computes queries, keys or values, with its bias; None if there is none."""
    program = assignment.program
    path: list[int] = []
    while (index := program.producer(value)) is not None and index in program.forward:
        if program.kinds[index] is ops.MatMulOp:
            break
        if program.kinds[index] not in _PROJECTION_PATH or assignment.owner(index) not in (None, group):
            return None
        path.append(index)
        value = program.ops[index].operands[0]
    if (
        index is None
        or program.kinds[index] is not ops.MatMulOp
        or assignment.owner(index) not in (None, group)
    ):
        return None
    position = weight_operand(assignment, index)
    if position is None:
        return None
    for path_op in path:
        assignment.claim(group, path_op)
    # One product may compute several of the three, as slices of its result.
    if assignment.claim(group, index):
        _claim_weights(assignment, group, index, position, path)
    return index


def _claim_weights(
    assignment: Assignment, group: Group, index: int, position: int, following: Iterable[int]
) -> None:
    """Claim gradients and updates of a product's weights and of the biases that follow it."""
    program = assignment.program
    weights = program.origin(program.ops[index].operands[position])[0]
    claim_products(assignment, group, weights, ops.MatMulOp)
    states = [weights]
    for other in following:
        for operand in program.ops[other].operands[1:]:
            origin, path = program.origin(operand)
            if origin in program.state:
                states.append(origin)
                for path_op in path:
                    assignment.claim(group, path_op)
    for state in states:
        assignment.claim_update(group, state)


def _claim_output(assignment: Assignment, group: Group, context: SSAValue) -> int:
    """Claim the output projection that follows the heads, with its bias.

    Returns:
        Its number of outputs; 0 if there is none.
    """
    program = assignment.program
    path: list[int] = []
    value = context
    while (index := single(set(program.users(value)) & program.forward)) is not None:
        if program.kinds[index] is ops.MatMulOp:
            break
        if program.kinds[index] not in PASS_THROUGH or not assignment.is_free(index):
            return 0
        path.append(index)
        value = program.ops[index].results[0]
    if index is None or not assignment.is_free(index):
        return 0
    position = weight_operand(assignment, index)
    if position is None:
        return 0
    for path_op in (*path, index):
        assignment.claim(group, path_op)
    _claim_weights(assignment, group, index, position, ())
    for state in claim_epilogue(assignment, group, index):
        assignment.claim_update(group, state)
    return shape_of(program.ops[index].results[0])[-1]


def _claim_input_moves(assignment: Assignment, group: Group) -> None:
    """Claim transposes and reshapes that only members read."""
    program = assignment.program
    pending = sorted(group.members)
    while pending:
        for index in program.producers(pending.pop()):
            is_private = group.members.issuperset(program.user_indices(index))
            is_move = program.kinds[index] in PASS_THROUGH and program.is_per_sample(index)
            if is_private and is_move and assignment.claim(group, index):
                pending.append(index)


def _claim_combining_ops(assignment: Assignment, group: Group) -> None:
    """Claim ops that read only results of members, such as a sum of gradients of queries and keys."""
    program = assignment.program
    pending = sorted({user for index in group.members for user in program.user_indices(index)})
    while pending:
        index = pending.pop()
        kinds = PASS_THROUGH if index in program.forward else _COMBINING
        if not assignment.is_free(index) or not program.is_per_sample(index):
            continue
        if program.kinds[index] not in kinds:
            continue
        operands = program.ops[index].operands
        producers = [program.producer(operand) for operand in operands if constant_splat(operand) is None]
        if all(producer in group.members for producer in producers):
            assignment.claim(group, index)
            pending += program.user_indices(index)


_PARAMETERS = frozenset(
    {
        "rows",  # queries of a sample
        "keys",  # keys that a query is compared with
        "heads",
        "inputs",  # length of a row before the projections; of the heads where there are none
        "width",  # total width of all heads
        "projections",  # number of products that project query, key and value in this kernel
        "outputs",  # length of a row of the result; 0 where this kernel does not project it
        "passes",  # 3 with gradients, 1 without
        "element_bytes",  # of the streamed elements
        "resident_bytes",  # weights, gradients and optimizer state of all PEs together
        "stash_bytes",  # activations of one sample that wait for its backward pass
        "step_millicycles",  # weight update: per batch, over all PEs
        "batch",  # samples of a step
    }
)
_OPTIONAL = frozenset(
    {
        "causal",  # 1 where a query sees no later key; such rows do not wait
        "update_bytes",  # part of resident_bytes that only the weight update reads; 0 if left out
    }
)
_MAX_CORE_LENGTH = 600


def attention_configurations(parameters: Mapping[str, int]) -> Configurations:
    """Return all layouts by a, b and f, as drawn at the top of this module."""
    a, b, f = _layouts(parameters)
    projections, backward = parameters["projections"], int(parameters["passes"] > 1)
    output = int(parameters["outputs"] > 0)
    lower = output * b + f
    lines = np.where(projections, 2 * a, a)
    width = np.maximum(projections * b, lower) + backward * -(-2 * a * f // lines)
    row, wire = _slowest_block(parameters, a, b, f)
    rows = parameters["rows"]
    weights = (projections + output) * a * b
    blocks = 1 + 2 * backward
    cores = blocks * a * f
    update = parameters["step_millicycles"] / 1000 / parameters["batch"] / np.maximum(1, weights)
    busy = coefficient("matmul_busy") * weights * (rows * _projection_row(parameters, a, b) + update)
    busy += coefficient("attention_busy") * blocks * rows * _products(parameters)
    width = width + int(coefficient("attention_lines_x"))
    height = lines + int(coefficient("attention_lines_y"))
    fullest, held = _memory(parameters, (a, b), weights, weights + cores, width * height)
    return Configurations(
        width=width,
        height=height,
        compute_cycles=whole_cycles(rows * row + update),
        transmission_cycles=whole_cycles(rows * wire),
        memory_per_pe_bytes=fullest,
        held_bytes=held,
        resident_bytes=np.full(width.shape, float(parameters["resident_bytes"])),
        busy_pe_cycles=busy,
    )


def _layouts(parameters: Mapping[str, int]) -> tuple[Ints, Ints, Ints]:
    """Return a, b and f of every layout to try."""
    if not parameters["projections"] and not parameters["outputs"]:
        ladder = line_ladder(_MAX_CORE_LENGTH)
        a, f = (grid.ravel() for grid in np.meshgrid(ladder[ladder <= 200], ladder, indexing="ij"))
        return a, np.zeros_like(a), f
    pieces = math.ceil(parameters["inputs"] / coefficient("smallest_piece"))
    first = useful_splits(parameters["inputs"])
    second = useful_splits(parameters["width"])
    second = second[second <= coefficient("matmul_lines_max")]
    grids = np.meshgrid(first[first <= pieces], second, line_ladder(_MAX_CORE_LENGTH), indexing="ij")
    a, b, f = (grid.ravel() for grid in grids)
    sensible = f <= 6 * b + 60  # no cores much wider than the projections
    aligned = f == f.min()  # once for every a and b: a core that ends where the projections end
    return (
        np.concatenate([a[sensible], a[aligned]]),
        np.concatenate([b[sensible], b[aligned]]),
        np.concatenate([f[sensible], 2 * b[aligned]]),
    )


def _slowest_block(parameters: Mapping[str, int], a: Ints, b: Ints, f: Ints) -> tuple[Floats, Floats]:
    """Return compute and transmission cycles of a row in the slowest block."""
    # The backward core takes as long as the forward one: it has twice the work and twice the PEs.
    scores = parameters["heads"] * parameters["keys"]
    work = coefficient("attention_mac") * _products(parameters) + coefficient("attention_exp") * scores
    core: Floats = coefficient("attention_start") + width_factor(parameters) * work / (a * f)
    compute = np.maximum(core, _projection_row(parameters, a, b))
    tile_in, tile_out = _tiles(parameters, a, b)
    wire = tile_wire_cycles(tile_in, tile_out) * width_factor(parameters) + coefficient("matmul_wire_start")
    return compute, pass_share(parameters) * wire


def _tiles(parameters: Mapping[str, int], a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Return the larger of the tiles of the projections before and after the cores."""
    lines = np.maximum(b, 1)
    inputs = max(parameters["inputs"] if parameters["projections"] else 0, parameters["width"])
    outputs = max(parameters["width"] if parameters["projections"] else 0, parameters["outputs"])
    return ceil_div(inputs, a), ceil_div(outputs, lines)


def _projection_row(parameters: Mapping[str, int], a: Ints, b: Ints) -> Floats:
    """Return the compute cycles of a row in a projection; 0 without one."""
    if not parameters["projections"] and not parameters["outputs"]:
        return np.zeros(a.shape)
    cycles = width_factor(parameters) * tile_cycles(*_tiles(parameters, a, b)) + coefficient("matmul_start")
    return pass_share(parameters) * cycles


def _products(parameters: Mapping[str, int]) -> int:
    """Return the multiplications of a row with keys and values."""
    return 2 * parameters["keys"] * parameters["width"]


def _memory(
    parameters: Mapping[str, int], lines: tuple[Ints, Ints], weights: Ints, pes: Ints, area: Ints
) -> tuple[Ints, Ints]:
    """Return the bytes of the fullest PE and of the rectangle."""
    # Projections work on their own weights; data that only the update reads may be anywhere in the rectangle.
    tile_in, tile_out = _tiles(parameters, *lines)
    worked = parameters["resident_bytes"] - parameters.get("update_bytes", 0)
    buffers = coefficient("row_buffers") * parameters["element_bytes"] * (tile_in + tile_out)
    held = coefficient("code_bytes") * area + np.float64(parameters["resident_bytes"]) + pes * buffers
    projecting: Ints = np.where(weights > 0, weights, pes)
    return pool_memory(coefficient("code_bytes") + worked / projecting + buffers, held, area)


def _figures(assignment: Assignment, group: Group) -> dict[str, int]:
    return {
        **group.sizes,
        "step_millicycles": op_work(assignment.program, group.updates),
        "update_bytes": update_bytes(assignment, group),
    }


def _delay(group: Group) -> float | None:
    """Return samples that it holds back while it waits for the keys of later rows; None if it is causal."""
    return None if group.sizes["causal"] else coefficient("attention_delay")


ATTENTION = Family(
    name="attention",
    doc="projections of query, key and value, softmax of products, output projection, all gradients",
    match=match_attention,
    cost=attention_configurations,
    parameters=_PARAMETERS,
    optional=_OPTIONAL,
    figures=_figures,
    rows=lambda _assignment, group: group.sizes["rows"],
    delay=_delay,
    fastest=(": every row looks at {keys:,} keys with {heads:,} heads, more PEs do not help."),
)

# The search for a mask ends at these ops.
_NO_MASK_OPS = PRODUCTS | {ops.AttentionOp, ops.SoftmaxOp}


def is_causal(program: Program, members: AbstractSet[int], read: Iterable[SSAValue], size: int) -> bool:
    """Return True if a constant mask hides all later keys from every query.

    The mask may be added to the scores, multiply them or select among them, and be combined with other masks,
    such as one of padding.

    Args:
        program: the step.
        members: ops of the attention.
        read: their operands other than queries, keys and values.
        size: number of queries, and of keys.
    """
    pending, seen = list(read), set[int]()
    while pending:
        value = pending.pop()
        index = program.producer(value)
        if index is None or index in seen or index in members:
            continue
        seen.add(index)
        if elements(value) == size * size and index in program.constant:
            mask = evaluate_value(value, size * size)
            if mask is not None and _hides_later_keys(mask.reshape(size, size)):
                return True
        elif shape_of(value)[-2:] == (size, size) and program.kinds[index] not in _NO_MASK_OPS:
            pending += program.ops[index].operands
    return False


def _hides_later_keys(mask: AnyArray) -> bool:
    """Return True if a mask has one value above the diagonal, and other values on it."""
    if len(mask) < 2:
        return False
    hidden = mask[0, 1]
    return bool(np.all(mask[np.triu_indices(len(mask), 1)] == hidden) and np.all(mask.diagonal() != hidden))
