"""What a kernel holds: parameters with their state, and activations that wait for the backward pass."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh.constant import ConstOp
from cgc.cirh.types import shape_of, size_bytes, tensor_of
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.program import Program, elements

_ROW_FAMILIES = frozenset({"layer_norm", "nlin", "add", "dropout", "pos_encoding", "loss"})
"""Their stash lies with the kernels beside them that have weights: 48 PEs of a layer norm hold no sample."""

_SIGNS_ONLY = frozenset({"ReluGrad"})
"""Gradients that need one bit of an element of the forward pass."""


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


def stash_bytes_per_sample(assignment: Assignment, group: Group) -> int:
    """Bytes per sample of what the backward ops of a kernel read of the forward pass.

    Kernels without weights keep nothing, the kernel before an activation keeps what its gradient reads.
    Scores of an attention are computed anew, from queries and keys.
    """
    if group.family in _ROW_FAMILIES:
        return 0
    program = assignment.program
    readers: dict[SSAValue, set[int]] = {}
    for index in sorted(group.members - program.forward):
        for operand in program.ops[index].operands:
            readers.setdefault(operand, set()).add(index)
    for value in _results(program, group):
        for user in program.users(value):
            owner = assignment.owner(user)
            if owner is not None and owner.family == "nlin" and user not in program.forward:
                readers.setdefault(value, set()).add(user)
    kept = [
        value
        for value in readers
        if value in program.per_sample_values
        and ((at := program.producer(value)) is None or at in program.forward)
        and not _is_scores(group, value)
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


def _stashed_bytes(program: Program, value: SSAValue, readers: set[int]) -> int:
    """Bytes per sample of one tensor; bits where its readers need no more."""
    tensor = tensor_of(value)
    signs = all(program.mnemonics[reader] in _SIGNS_ONLY for reader in readers)
    if signs or str(tensor.element_type) == "i1":
        return -(-elements(value) // (8 * program.batch_size))
    return -(-size_bytes(tensor) // program.batch_size)
