"""Groups of ops that no library rule matches, and the loop nests generated for each group.

Adjacent ops of a layer are one kernel: lowered to LAIR, fused, and read as loop nests. Groups that compute
the same share one lowering, found by the kinds of the ops and their connections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from cgc.cirh.base import LayerPath
from cgc.cirh.interface import graph_function
from cgc.cirh.ops import BroadcastInDimOp, ConstOp
from cgc.cirh.optimizer import OptimizerOp
from cgc.cirh.text import print_module
from cgc.cirh.types import HALF_FORMAT
from cgc.kernels.assignment import Assignment, Group, update_region
from cgc.kernels.families.loops import DATA_MOVEMENT, ELEMENTWISE, OPTIMIZER, REDUCTION
from cgc.kernels.families.scalars import CONTROL
from cgc.kernels.generated import GeneratedKernel
from cgc.kernels.graph import KernelGraph
from cgc.kernels.program import FREE, RELABELS, Program
from cgc.lair.lower import lower_group
from cgc.lair.nest import LoopProgram, loop_program
from cgc.lair.passes import LairCsePass, LairDcePass, LairFusePass

# Ops of one generated kernel; a longer chain is cut, so that the pieces form a pipeline.
MAX_FUSED_OPS = 64

_GENERATED = {family.name: family for family in (ELEMENTWISE, REDUCTION, DATA_MOVEMENT)}

# Attribute of a function in `lair.mlir`: the names of its kernels.
KERNELS = "cs.kernels"

_LAIR_PASSES = (LairFusePass(), LairCsePass(), LairDcePass())
# Layers of a model repeat, and lowering a group takes much longer than its key.
_CACHE_SIZE = 512
_cache: OrderedDict[Hashable, tuple[ModuleOp, LoopProgram]] = OrderedDict()


def match_rest(assignment: Assignment) -> None:
    """Assign each remaining op to a neighbor's kernel if it costs nothing, else to a generated kernel."""
    _follow_producers(assignment)
    _follow_users(assignment)
    _open_fused(assignment)
    # Repeat for constants and broadcasts that the new kernels read.
    _follow_users(assignment)
    # Shared scalars, and constants that only the step returns, belong to the kernel of scalars.
    group = next((found for found in assignment.groups if found.family is CONTROL), None)
    for index in assignment.free():
        if group is None:
            group = assignment.open(CONTROL, index)
        else:
            assignment.claim(group, index)


def generate_all(assignment: Assignment) -> dict[int, GeneratedKernel]:
    """Generate the loop nests of all groups without a library rule, and set their families.

    Returns:
        Generated kernels by the anchors of their groups.
    """
    found = {}
    for group in assignment.groups:
        if group.generated:
            kernel = generate(assignment.program, sorted(group.members))
            group.family = _GENERATED[kernel.family]
            found[group.anchor] = kernel
    return found


def _follow_producers(assignment: Assignment) -> None:
    """Assign reshapes and casts to the kernel whose result they relabel."""
    program = assignment.program
    for index in assignment.free():
        if program.kinds[index] in RELABELS:
            producer = program.producer(program.ops[index].operands[0])
            owner = None if producer is None else assignment.owner(producer)
            if owner is not None and owner.family is not CONTROL:
                assignment.claim(owner, index)


def _follow_users(assignment: Assignment) -> None:
    """Assign constants, broadcasts and relabelled arguments to the kernel of their first user.

    A scalar that several kernels read remains for the kernel of the step's scalars.
    """
    program = assignment.program
    # In reverse order, so that a chain of such ops follows the user of its last op.
    for index in reversed(assignment.free()):
        if program.kinds[index] in FREE | RELABELS:
            owners = [owner for user in program.user_indices(index) if (owner := assignment.owner(user))]
            shared_scalar = program.elements(index) == 1 and any(owner is not owners[0] for owner in owners)
            if owners and not shared_scalar:
                assignment.claim(owners[0], index)


def _open_fused(assignment: Assignment) -> None:
    """Open generated kernels for groups of adjacent ops of a layer, and kernels of updates."""
    program = assignment.program
    candidates = [index for index in assignment.free() if program.kinds[index] not in FREE]
    clusters = _Clusters(candidates)
    for state in program.replacements:
        # Unite the update of a parameter with the first op that uses it.
        region = [index for index in update_region(program, state) if index in clusters]
        users = [index for index in program.users(state) if index in clusters and index in program.forward]
        for index in (*region[1:], *users[:1]):
            clusters.join(region[0] if region else index, index)
    paths = {index: program.ops[index].layer for index in candidates}
    for index in candidates:
        for user in program.user_indices(index):
            if user in clusters and paths[index] == paths[user]:
                clusters.join(index, user)
    _join_layers(clusters, program, paths)
    for members in clusters.groups():
        joined = _group_of_layer(assignment, members[0])
        if joined is not None:
            for member in members:
                assignment.claim(joined, member)
            continue
        # An optimizer op by itself has a library kernel; with other ops it is generated.
        updates_only = all(isinstance(program.ops[index], OptimizerOp) for index in members)
        family = OPTIMIZER if updates_only else ELEMENTWISE  # `generate_all` decides by the loop nests
        group = assignment.open(family, members[0], generated=not updates_only)
        group.updates = {index for index in members if not program.is_per_sample(index)}
        for member in members:
            assignment.claim(group, member)


def _join_layers(clusters: _Clusters, program: Program, paths: dict[int, LayerPath]) -> None:
    """Unite the parts of a layer, such as its forward and backward ops, unless the layer contains others."""
    all_paths = {op.layer for op in program.ops}
    outer = {path[:depth] for path in all_paths if path for depth in range(len(path))}
    first: dict[LayerPath, int] = {}
    for index, path in paths.items():
        if path and path not in outer:
            clusters.join(first.setdefault(path, index), index)


def _group_of_layer(assignment: Assignment, index: int) -> Group | None:
    """Return the dropout or loss kernel of an op's layer, which takes the remaining ops of the layer."""
    ops = assignment.program.ops
    path = ops[index].layer
    for group in assignment.groups:
        if path and group.family.absorbs_layer and ops[group.anchor].layer == path:
            return group
    return None


class _Clusters:
    """Disjoint sets of ops with a limit on their size (union-find)."""

    def __init__(self, indices: Iterable[int]) -> None:
        self._parent = {index: index for index in indices}
        self._size = dict.fromkeys(self._parent, 1)

    def __contains__(self, index: int) -> bool:
        return index in self._parent

    def join(self, a: int, b: int) -> None:
        """Unite the sets of two ops unless the union is too large."""
        first, second = sorted((self._root(a), self._root(b)))
        if first != second and self._size[first] + self._size[second] <= MAX_FUSED_OPS:
            self._parent[second] = first
            self._size[first] += self._size[second]

    def groups(self) -> list[list[int]]:
        """Return the sets, each ascending, ordered by their first op."""
        found: dict[int, list[int]] = {}
        for index in sorted(self._parent):
            found.setdefault(self._root(index), []).append(index)
        return list(found.values())

    def _root(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = self._parent[self._parent[index]]
            index = self._parent[index]
        return index


def generate(program: Program, members: Sequence[int]) -> GeneratedKernel:
    """Generate the kernel of a group of ops.

    Args:
        program: the step.
        members: positions of its ops, ascending.
    """
    members = _with_broadcasts(program, members)
    inputs, outputs = _border(program, members)
    nests = _lower(program, members, inputs, outputs)[1]
    arguments = [number for number, value in enumerate(nests.values) if value.argument is not None]
    samples = {
        number for number, value in zip(arguments, inputs, strict=True) if value in program.per_sample_values
    }
    samples |= {
        number
        for number, value in zip(nests.results, outputs, strict=True)
        if value in program.per_sample_values
    }
    resident = {
        number
        for number, value in zip(arguments, inputs, strict=True)
        if value in program.state or isinstance(value.owner, ConstOp)
    }
    return GeneratedKernel(nests, frozenset(samples), frozenset(resident), program.batch_size)


def lair_text(module: ModuleOp, graph: KernelGraph) -> str:
    """Return the LAIR of all generated kernels: each distinct function once, with the names of its kernels.

    Args:
        module: the step that the graph was made of.
        graph: its kernels.
    """
    program = Program(module)
    # Modules are cached by computation, so the identity of a module identifies the function.
    users: dict[int, list[str]] = {}
    found: dict[int, ModuleOp] = {}
    for kernel in graph.kernels:
        if kernel.loops is not None:
            members = _with_broadcasts(program, kernel.op_indices)
            lowered, _ = _lower(program, members, *_border(program, members))
            users.setdefault(id(lowered), []).append(kernel.name)
            found[id(lowered)] = lowered
    ops: list[FuncOp] = []
    half = graph_function(module).attributes.get(HALF_FORMAT)
    for number, (key, lowered) in enumerate(found.items()):
        first, *declared = _rename_functions(lowered, f"kernel_{number}")
        first.attributes[KERNELS] = ArrayAttr([StringAttr(name) for name in users[key]])
        if half is not None:
            first.attributes[HALF_FORMAT] = half
        ops += [first, *declared]
    return print_module(ModuleOp(list(ops)))


def _rename_functions(module: ModuleOp, name: str) -> list[FuncOp]:
    """Return the functions of a module under names that no other module uses."""
    copy = module.clone()
    functions = [op for op in copy.ops if isinstance(op, FuncOp)]
    for function in functions:
        copy.body.block.detach_op(function)
    first, *declared = functions
    names = {function.sym_name.data: f"{name}_{function.sym_name.data}" for function in declared}
    for op in first.walk():
        if isinstance(op, CallOp):
            op.callee = type(op.callee)(names[op.callee.root_reference.data])
    for function in declared:
        function.sym_name = StringAttr(names[function.sym_name.data])
    first.sym_name = StringAttr(name)
    return functions


def _with_broadcasts(program: Program, members: Sequence[int]) -> list[int]:
    """Return the members and the broadcasts of other kernels that they read, ascending."""
    # Only the operand of a broadcast streams to a kernel, such as a loss scale: the kernel repeats it itself.
    found = set(members)
    pending = list(members)
    while pending:
        for operand in program.ops[pending.pop()].operands:
            producer = program.producer(operand)
            if producer is not None and producer not in found and isinstance(operand.owner, BroadcastInDimOp):
                found.add(producer)
                pending.append(producer)
    return sorted(found)


def _border(program: Program, members: Sequence[int]) -> tuple[list[SSAValue], list[SSAValue]]:
    """Return the values that enter a group, non-splat constants included, and those that leave it."""
    inside = set(members)
    inputs: dict[SSAValue, None] = {}
    for index in members:
        for operand in program.ops[index].operands:
            owner = operand.owner
            if isinstance(owner, ConstOp):
                if owner.splat_value() is None:
                    inputs[operand] = None
            elif program.producer(operand) not in inside:
                inputs[operand] = None
    returned = {*program.outputs, *program.replacements.values()}
    outputs: list[SSAValue] = [
        result
        for index in members
        if not isinstance(program.ops[index], ConstOp)
        for result in program.ops[index].results
        if result in returned or _leaves(program, result, inside)
    ]
    return list(inputs), outputs


def _leaves(program: Program, result: SSAValue, inside: AbstractSet[int]) -> bool:
    """Return True if another kernel reads a result of this one; readers recompute broadcasts themselves."""
    is_recomputed = isinstance(result.owner, BroadcastInDimOp)
    return not is_recomputed and any(user not in inside for user in program.users(result))


def _lower(
    program: Program, members: Sequence[int], inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]
) -> tuple[ModuleOp, LoopProgram]:
    """Lower a group to LAIR; groups that compute the same share the result."""
    ops = [program.ops[index] for index in members]
    # Groups that compute the same have the same key, whatever the names of their values.
    numbers: dict[SSAValue, int] = {value: number for number, value in enumerate(inputs)}
    keys: list[Hashable] = [tuple(value.type for value in inputs)]
    for op in ops:
        if isinstance(op, ConstOp):
            continue
        operands = tuple(_operand_key(operand, numbers) for operand in op.operands)
        keys.append((op.name, operands, tuple(sorted(op.properties.items())), tuple(op.result_types)))
        for result in op.results:
            numbers[result] = len(numbers)
    key = tuple(keys), tuple(_operand_key(value, numbers) for value in outputs)
    if key not in _cache:
        module = lower_group(ops, inputs, outputs)
        for module_pass in _LAIR_PASSES:
            module_pass.apply(Context(), module)
        _cache[key] = module, loop_program(module)
        if len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    _cache.move_to_end(key)
    return _cache[key]


def _operand_key(value: SSAValue, numbers: dict[SSAValue, int]) -> Hashable:
    if value in numbers:
        return numbers[value]
    assert isinstance(value.owner, ConstOp)  # constants of one value are part of the kernel
    return value.owner.value
