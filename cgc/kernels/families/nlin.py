"""Activations with a kernel of their own: GELU, formulas, and those that no fully connected layer includes.

A formula is an activation written as elementwise ops: `0.5 * x * (1 + tanh(...))` is a GELU, in any order of
the ops, in any precision and with any constants.
"""

from __future__ import annotations

from heapq import heappop, heappush

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.activation import CompositeOp
from cgc.cirh.ops import ops_where
from cgc.kernels.assignment import GRADIENTS, Assignment, single
from cgc.kernels.program import RELABELS, Program, elements
from cgc.kernels.row_cost import row_family
from cgc.passes.constant_fold import constant_splat

_ACTIVATIONS = ops_where(lambda op: op.TRAITS.activation) | {CompositeOp}

# A formula without any of these ops is only a scale and a shift.
_NONLINEAR = frozenset(
    {ops.ReluOp, ops.LeakyReluOp, ops.HardSigmoidOp, ops.EluOp, ops.SoftplusOp, ops.SigmoidOp, ops.TanhOp}
    | {ops.ErfOp, ops.ExpOp, ops.Expm1Op, ops.LogOp, ops.Log1pOp, ops.PowOp}
    | {ops.MaxOp, ops.MinOp, ops.ClampOp}
)

# Mish has an exponential, a logarithm and a tanh. A formula with more nonlinear ops is no activation.
_MAX_NONLINEAR = 3

_GRADIENTS = frozenset(
    {ops.ReluGradOp, ops.LeakyReluGradOp, ops.EluGradOp}
    | {ops.SoftplusGradOp, ops.SigmoidGradOp, ops.TanhGradOp}
)
_SUMS = frozenset({ops.AddOp, ops.SubOp})
_SCALES = frozenset({ops.MulOp, ops.DivOp, ops.NegOp, ops.ReciprocalOp, ops.SqrtOp, ops.RsqrtOp})
_SELECTIONS = frozenset({ops.AbsOp, ops.SignOp, ops.CompareOp, ops.SelectOp})
_POINTWISE = _NONLINEAR | _GRADIENTS | _SUMS | _SCALES | _SELECTIONS | RELABELS


def match_activations(assignment: Assignment) -> None:
    """Open a kernel for each activation of samples whose neighbors all have kernels, with its gradient."""
    program = assignment.program
    for index, op in enumerate(program.ops):
        if program.kinds[index] not in _ACTIVATIONS or not assignment.is_free(index):
            continue
        if not program.is_per_sample(index) or not assignment.is_isolated(index):
            continue
        group = assignment.open(NLIN, index)
        for value in (op.operands[0], op.results[0]):
            for user in program.users(value):
                if program.kinds[user] in GRADIENTS and user not in program.forward:
                    assignment.claim(group, user)
        if isinstance(op, CompositeOp):
            state, path = program.origin(op.bias)
            for path_op in path:
                assignment.claim(group, path_op)
            if state in program.state:
                assignment.claim_update(group, state)
    # The kernel of a formula costs as much as that of a single op. It runs the ops as they are, so that every
    # number is rounded where the program rounds it.
    for members in _formulas(assignment):
        group = assignment.open(NLIN, members[0])
        for index in members:
            assignment.claim(group, index)


def _formulas(assignment: Assignment) -> list[list[int]]:
    """Return the ops of each activation that is a formula, ascending, if all its neighbors have kernels."""
    formulas: list[list[int]] = []
    claimed: set[int] = set()
    for index in assignment.free():
        if index in claimed or assignment.program.kinds[index] not in _NONLINEAR:
            continue
        members = _formula(assignment, index)
        if members is not None and members.isdisjoint(claimed):
            formulas.append(sorted(members))
            claimed |= members
    return formulas


def _formula(assignment: Assignment, root: int) -> set[int] | None:
    """Return all ops of the formula that a nonlinear op is part of, with its gradient; None without one."""
    argument = _formula_argument(assignment, root)
    if argument is None:
        return None
    region = _Region(assignment, argument)
    region.grow(forward=True)
    nonlinear = [index for index in region.members if assignment.program.kinds[index] in _NONLINEAR]
    if root not in nonlinear or len(nonlinear) > _MAX_NONLINEAR or len(region.outputs()) > 1:
        return None
    region.grow(forward=False)
    free = assignment.free()
    sums = {index for index in free if assignment.program.kinds[index] in _SUMS}
    others = region.members | sums
    return region.members if all(assignment.is_isolated(index, others) for index in region.members) else None


def _formula_argument(assignment: Assignment, root: int) -> SSAValue | None:
    """Return the value that all pointwise ops before an op start from; None if there is no such value."""
    program = assignment.program
    if not _is_pointwise(assignment, root, forward=True):
        return None
    sources: set[SSAValue] = set()
    pending, seen = [root], {root}
    while pending:
        for operand in _variables(program, pending.pop()):
            index = program.producer(operand)
            if index is None or not _is_pointwise(assignment, index, forward=True):
                sources.add(operand)
            elif index not in seen:
                seen.add(index)
                pending.append(index)
    # If there are several, as for a sum of two streams, the formula starts at the op itself.
    return single(sources) or single(_variables(program, root))


class _Region:
    """A set of pointwise ops that starts at a value and grows along its users.

    Attributes:
        members: positions of the ops.
    """

    def __init__(self, assignment: Assignment, start: SSAValue) -> None:
        self.members: set[int] = set()
        self._assignment = assignment
        self._known = {start}
        self._gradient: SSAValue | None = None

    def grow(self, *, forward: bool) -> None:
        """Add pointwise ops that read only known values; backward ops may also read one gradient."""
        program = self._assignment.program
        pending = sorted({user for value in self._known for user in program.users(value)})
        while pending:
            index = heappop(pending)
            if index in self.members or not _is_pointwise(self._assignment, index, forward=forward):
                continue
            unknown = set(_variables(program, index)) - self._known
            if not forward and self._gradient is None:
                self._gradient = single(unknown)
            if unknown <= {self._gradient}:
                self._add(index)
                for user in program.user_indices(index):
                    heappush(pending, user)
        if not forward:
            self._add_scales()

    def _add(self, index: int) -> None:
        self.members.add(index)
        self._known.update(self._assignment.program.ops[index].results)

    def _add_scales(self) -> None:
        """Add the ops that scale the gradient for the formula only."""
        program = self._assignment.program
        while self._gradient is not None and (index := program.producer(self._gradient)) is not None:
            inside = set(program.user_indices(index)) <= self.members
            if not inside or not _is_pointwise(self._assignment, index, forward=False):
                return
            self._gradient = single(set(_variables(program, index)))
            if self._gradient is not None:
                self._add(index)

    def outputs(self) -> list[SSAValue]:
        """Return the results that forward ops outside of the region read."""
        program = self._assignment.program
        outside = program.forward - self.members
        results = (result for index in self.members for result in program.ops[index].results)
        return [result for result in results if not outside.isdisjoint(program.users(result))]


def _is_pointwise(assignment: Assignment, index: int, *, forward: bool) -> bool:
    """Return True if a free op of the forward or backward pass is elementwise on samples."""
    program = assignment.program
    if program.kinds[index] not in _POINTWISE or not assignment.is_free(index):
        return False
    if (index in program.forward) != forward or not program.is_per_sample(index):
        return False
    size = program.elements(index)
    return all(elements(operand) == size for operand in _variables(program, index))


def _variables(program: Program, index: int) -> list[SSAValue]:
    """Return the operands of an op that are not constants."""
    return [operand for operand in program.ops[index].operands if constant_splat(operand) is None]


NLIN = row_family(
    name="nlin",
    doc="a separate activation, such as GELU, and its gradient",
    match=match_activations,
    has_images=True,
    recomputes_results=True,
)
