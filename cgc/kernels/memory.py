"""What a kernel holds: parameters with their state, and activations that wait for the backward pass."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh.shape import ConstOp
from cgc.cirh.types import shape_of, size_bytes, tensor_of
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.program import PRODUCTS, Program, elements
from cgc.kernels.work import element_bytes
from cs_toolkit.step import MODEL_STATE


def resident_bytes(assignment: Assignment, group: Group) -> int:
    """Bytes of state, of a gradient for each tensor that is updated, and of large constants in a kernel."""
    program = assignment.program
    total = sum(_constant_bytes(program, index) for index in group.members)
    for state in _kept_state(program, group):
        total += size_bytes(tensor_of(state))
        if group.updates and program.state[state].startswith(MODEL_STATE) and state in program.replacements:
            total += elements(state) * _gradient_element_bytes(program, group, state)
    return total


def update_bytes(assignment: Assignment, group: Group) -> int:
    """Bytes of the state in a kernel that only the update of its weights reads: moments, momentum."""
    program = assignment.program
    return sum(
        size_bytes(tensor_of(state))
        for state in _kept_state(program, group)
        if group.updates.issuperset(program.users(state))
    )


def gradient_bytes(assignment: Assignment, group: Group) -> int:
    """Bytes of the sums over the samples of a step that the state of the model in a kernel is updated with.

    There is a sum for each tensor that the step replaces: a gradient, or the moments that a batch norm keeps.
    """
    program = assignment.program
    if program.mode != "train":
        return 0
    return sum(
        elements(state) * _gradient_element_bytes(program, group, state)
        for state in _kept_state(program, group)
        if program.state[state].startswith(MODEL_STATE)
        and program.replacements.get(state, state) is not state
    )


def _kept_state(program: Program, group: Group) -> list[SSAValue]:
    """State tensors that a kernel keeps: what several kernels read lies in the one that reads it first."""
    read = {operand for index in group.members for operand in program.ops[index].operands}
    return [state for state in read & program.state.keys() if program.users(state)[0] in group.members]


def _gradient_element_bytes(program: Program, group: Group, state: SSAValue) -> int:
    """Bytes of an element of a gradient while it is summed over the samples of a step.

    A product sums in the precision of its operands. Sums of single rows, such as those of a table, are as
    wide as the state.
    """
    sums = [
        element_bytes(result)
        for index in group.members
        if program.kinds[index] in PRODUCTS
        for result in program.ops[index].results
        if result not in program.per_sample_values and elements(result) == elements(state)
    ]
    return min(sums, default=element_bytes(state))


def _constant_bytes(program: Program, index: int) -> int:
    """Bytes of a constant; one with the same value everywhere is kept as that value."""
    op = program.ops[index]
    if not isinstance(op, ConstOp) or op.splat_value() is not None:
        return 0
    return size_bytes(tensor_of(op.result))


def stash_bytes_per_sample(assignment: Assignment, group: Group) -> int:
    """Bytes per sample of what the backward ops of a kernel read of the forward pass.

    Kernels without weights keep nothing, the kernel before an activation keeps what its gradient reads, and
    where that is the input of the activation, its output is computed again. So are scores of an attention,
    from queries and keys.
    """
    if not group.family.keeps_samples:
        return 0
    program = assignment.program
    readers: dict[SSAValue, set[int]] = {}
    for index in sorted(group.members - program.forward):
        for operand in program.ops[index].operands:
            readers.setdefault(operand, set()).add(index)
    for value in _results(program, group):
        if users := _readers_in_activations(assignment, value):
            readers.setdefault(value, set()).update(users)
    kept = [
        value
        for value in readers
        if value in program.per_sample_values
        and ((at := program.producer(value)) is None or at in program.forward)
        and not _is_scores(group, value)
        and not _is_made_again(assignment, value)
    ]
    return sum(_stashed_bytes(program, value, readers[value]) for value in kept)


def _results(program: Program, group: Group) -> list[SSAValue]:
    return [
        result for index in sorted(group.members & program.forward) for result in program.ops[index].results
    ]


def _is_scores(group: Group, value: SSAValue) -> bool:
    """Whether a tensor of an attention is as large as its scores."""
    sizes = group.sizes
    return shape_of(value)[-2:] == (sizes.get("rows"), sizes.get("keys")) and len(shape_of(value)) > 2


def _is_made_again(assignment: Assignment, value: SSAValue) -> bool:
    """Whether an activation that stands alone makes a tensor of what is kept for its gradient anyway."""
    program = assignment.program
    producer = program.producer(value)
    owner = None if producer is None else assignment.owner(producer)
    if owner is None or not owner.family.computes_again:
        return False
    read = {operand for index in owner.members & program.forward for operand in program.ops[index].operands}
    return any(_readers_in_activations(assignment, operand) for operand in read - {value})


def _readers_in_activations(assignment: Assignment, value: SSAValue) -> set[int]:
    """Backward ops of activations that stand alone and read a tensor."""
    program = assignment.program
    return {
        user
        for user in program.users(value)
        if user not in program.forward
        and (owner := assignment.owner(user)) is not None
        and owner.family.computes_again
    }


def _stashed_bytes(program: Program, value: SSAValue, readers: set[int]) -> int:
    """Bytes per sample of one tensor; bits where its readers need no more."""
    tensor = tensor_of(value)
    signs = all(program.ops[reader].TRAITS.signs_only for reader in readers)
    if signs or str(tensor.element_type) == "i1":
        return -(-elements(value) // (8 * program.batch_size))
    return -(-size_bytes(tensor) // program.batch_size)
