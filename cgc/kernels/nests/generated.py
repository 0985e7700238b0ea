"""Kernels for the ops that no rule of the library takes: lowered to LAIR, fused, read as loop nests.

Groups that do the same share one lowering: it is found by what the ops are and how they hang together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from cgc.cirh.base import CirhOp
from cgc.cirh.interface import graph_function
from cgc.cirh.ops import BroadcastInDimOp, ConstOp
from cgc.cirh.text import print_module
from cgc.cirh.types import HALF_FORMAT
from cgc.kernels.graph import KernelGraph
from cgc.kernels.nests.schedule import GeneratedKernel
from cgc.kernels.program import Program
from cgc.lair.lower import lower_group
from cgc.lair.nest import LoopProgram, loop_program
from cgc.lair.passes import LairCsePass, LairDcePass, LairFusePass

KERNELS = "cs.kernels"
"""Attribute of a function in `lair.mlir`: the kernels that run it."""

_LAIR_PASSES = (LairFusePass(), LairCsePass(), LairDcePass())
_CACHE_SIZE = 512
_cache: OrderedDict[Hashable, tuple[ModuleOp, LoopProgram]] = OrderedDict()


def generate(program: Program, members: Sequence[int]) -> GeneratedKernel:
    """The kernel of a group of ops.

    Args:
        program: the step.
        members: positions of its ops, ascending.
    """
    members = _with_repeats(program, members)
    inputs, outputs = _border(program, members)
    nests = _lowered(program, members, inputs, outputs)[1]
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
    """LAIR of all generated kernels: a function for each different one, with the names of its kernels.

    Args:
        module: the step that the graph was made of.
        graph: its kernels.
    """
    program = Program(module)
    users: dict[int, list[str]] = {}
    found: dict[int, ModuleOp] = {}
    for kernel in graph.kernels:
        if kernel.loops is not None:
            members = _with_repeats(program, kernel.op_indices)
            lowered, _ = _lowered(program, members, *_border(program, members))
            users.setdefault(id(lowered), []).append(kernel.name)
            found[id(lowered)] = lowered
    ops: list[FuncOp] = []
    half = graph_function(module).attributes.get(HALF_FORMAT)
    for number, (key, lowered) in enumerate(found.items()):
        first, *declared = _renamed(lowered, f"kernel_{number}")
        first.attributes[KERNELS] = ArrayAttr([StringAttr(name) for name in users[key]])
        if half is not None:
            first.attributes[HALF_FORMAT] = half
        ops += [first, *declared]
    return print_module(ModuleOp(list(ops)))


def _renamed(module: ModuleOp, name: str) -> list[FuncOp]:
    """The functions of a module under names that no other module has."""
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


def _with_repeats(program: Program, members: Sequence[int]) -> list[int]:
    """The members with the broadcasts of other kernels that they read, ascending.

    Every kernel repeats elements itself: what comes to it is what is repeated, such as one loss scale.
    """
    found = set(members)
    waiting = list(members)
    while waiting:
        for operand in program.ops[waiting.pop()].operands:
            producer = program.producer(operand)
            if producer is not None and producer not in found and isinstance(operand.owner, BroadcastInDimOp):
                found.add(producer)
                waiting.append(producer)
    return sorted(found)


def _border(program: Program, members: Sequence[int]) -> tuple[list[SSAValue], list[SSAValue]]:
    """What a group reads of others, with the constants of different elements; what others read of it."""
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
    """Whether another kernel gets a result from this one; what is only repeated it repeats itself."""
    repeated = isinstance(result.owner, BroadcastInDimOp)
    return not repeated and any(user not in inside for user in program.users(result))


def _lowered(
    program: Program, members: Sequence[int], inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]
) -> tuple[ModuleOp, LoopProgram]:
    ops = [program.ops[index] for index in members]
    key = _key(ops, inputs, outputs)
    if key not in _cache:
        module = lower_group(ops, inputs, outputs)
        for module_pass in _LAIR_PASSES:
            module_pass.apply(Context(), module)
        _cache[key] = module, loop_program(module)
        if len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    _cache.move_to_end(key)
    return _cache[key]


def _key(ops: Sequence[CirhOp], inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> Hashable:
    """Equal for groups that compute the same: ops and attributes by their order, values by their numbers."""
    numbers: dict[SSAValue, int] = {value: number for number, value in enumerate(inputs)}
    keys: list[Hashable] = [tuple(value.type for value in inputs)]
    for op in ops:
        if isinstance(op, ConstOp):
            continue
        operands = tuple(_operand_key(operand, numbers) for operand in op.operands)
        keys.append((op.name, operands, tuple(sorted(op.properties.items())), tuple(op.result_types)))
        for result in op.results:
            numbers[result] = len(numbers)
    return tuple(keys), tuple(_operand_key(value, numbers) for value in outputs)


def _operand_key(value: SSAValue, numbers: dict[SSAValue, int]) -> Hashable:
    if value in numbers:
        return numbers[value]
    assert isinstance(value.owner, ConstOp)  # constants of one value are part of the kernel
    return value.owner.value
