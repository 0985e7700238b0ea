"""A step for weight streaming: its schedule of calls, and a module for each function that they call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from cgc.cirh.base import layer_paths
from cgc.cirh.interface import graph_function
from cgc.cirh.module import copy_module
from cgc.cirh.ops import L2NormOp
from cgc.cirh.types import shape_of
from cgc.kernels.program import Program, StepPart, elements
from cgc.layers.cut import Cut, cut
from cgc.layers.functions import Function, build_part_module, extract_function
from cgc.layers.graph import StepGraph, step_graph
from cgc.layers.micro_batches import MicroStep, micro_step
from cgc.layers.pieces import build_piece_module
from cgc.layers.roles import Role
from cgc.layers.schedule import schedule
from cs_toolkit.layered_step import Schedule


@dataclass(frozen=True)
class StreamedStep:
    """A step in layers.

    Attributes:
        module: the step that was cut, with a separate norm for each tensor.
        program: the same, as the compiler reads it.
        cut: of the module.
        schedule: the calls.
        functions: the functions that they call, by number.
        modules: of each function, with weights as state and everything else as inputs.
        micro: the rewrite of the step for micro-batches; None if the batch is computed at once.
    """

    module: ModuleOp
    program: Program
    cut: Cut
    schedule: Schedule
    functions: tuple[Function, ...]
    modules: tuple[ModuleOp, ...]
    micro: MicroStep | None = None

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches of a batch."""
        return 1 if self.micro is None else self.micro.count

    @property
    def batch_size(self) -> int:
        """Samples of a step."""
        return self.micro_batches * self.program.batch_size


def streamed_step(
    module: ModuleOp, recomputed: frozenset[int] = frozenset(), micro_batches: int = 1
) -> StreamedStep:
    """Cut a step into layers.

    Args:
        module: the step as the passes leave it; it is not changed.
        recomputed: layers whose backward part recomputes the forward part, instead of storing its values.
        micro_batches: number of micro-batches of a batch.

    Raises:
        NotSplitError: the samples of the batch depend on each other, so there are no micro-batches.
    """
    micro = micro_step(module, micro_batches) if micro_batches > 1 else None
    if micro is not None:
        module = micro.module
    if has_joint_norms(module):
        module = copy_module(module) if micro is None else module
        split_norms(module)
    program = Program(module)
    return _schedule(module, program, cut(step_graph(program, micro)), recomputed, micro)


def reschedule(step: StreamedStep, recomputed: frozenset[int]) -> StreamedStep:
    """Schedule the same cut with other layers recomputed."""
    return _schedule(step.module, step.program, step.cut, recomputed, step.micro)


def _schedule(
    module: ModuleOp, program: Program, found: Cut, recomputed: frozenset[int], micro: MicroStep | None
) -> StreamedStep:
    """Schedule a cut, and build the module of each function."""
    values, like = program.values, program.function
    scheduled = schedule(found, program, recomputed, micro)

    def build(part: Function) -> ModuleOp:
        pieces = build_piece_module(part, found.graph, program.ops, values, like) if part.in_pieces else None
        return pieces or build_part_module(part, found.graph, program.ops, values, like)

    modules = tuple(map(build, scheduled.functions))
    return StreamedStep(module, program, found, scheduled.schedule, scheduled.functions, modules, micro)


def has_joint_norms(module: ModuleOp) -> bool:
    """Return True if there is a norm to split."""
    return any(map(_is_joint, graph_function(module).body.block.ops))


def split_norms(module: ModuleOp) -> None:
    """Give each tensor under a joint norm a separate norm, so that not all gradients are needed at the same
    time.

    The result differs from the joint norm by the rounding of a root and a square.
    """
    function: FuncOp = graph_function(module)
    block = function.body.block
    for op in list(block.ops):
        if isinstance(op, L2NormOp) and _is_joint(op):
            parts = [
                L2NormOp.create_unchecked([operand], op.result_types, {}, {}) for operand in op.operand_values
            ]
            block.insert_ops_before(parts, op)
            whole = L2NormOp(*(part.result for part in parts))
            whole.attributes.update(op.attributes)
            block.insert_op_before(whole, op)
            op.result.replace_all_uses_with(whole.result)
            block.erase_op(op)


def _is_joint(op: Operation) -> bool:
    """Return True for the norm of several values, tensors among them."""
    # By its class: most ops are others, and isinstance takes ten times as long for those.
    if type(op) is not L2NormOp:
        return False
    values = op.operand_values
    return len(values) > 1 and any(map(shape_of, values))


@dataclass(frozen=True)
class WholeLayer:
    """Forward and backward part of a layer as one module.

    Attributes:
        module: of both.
        part: its forward ops, and the results that are gradients.
    """

    module: ModuleOp
    part: StepPart


def whole_layer(step: StreamedStep, index: int) -> WholeLayer | None:
    """Return a layer with both its parts; None if it computes nothing.

    Args:
        step: the step.
        index: of the layer.
    """
    graph, roles = step.cut.graph, step.cut.roles
    layer = step.cut.layers[index]
    inside = frozenset((*layer.forward, *layer.backward))
    wanted = [
        value
        for op in sorted(inside)
        for value in graph.results[op]
        if value in graph.outputs or not inside.issuperset(graph.users.get(value, ()))
    ]
    if not wanted:
        return None
    part = extract_function(graph, lambda op: op in inside or roles[op] is Role.DUPLICATED, wanted)
    forward = frozenset(position for position, op in enumerate(part.ops) if op in graph.forward)
    values = step.program.values
    module = build_part_module(part, graph, step.program.ops, values, step.program.function)
    gradients = {}
    for position, weight in enumerate(part.arguments[: part.weights]):
        gradient = _find_gradient(graph, weight, frozenset(part.results), values)
        if gradient is not None:
            gradients[position] = part.results.index(gradient)
    return WholeLayer(module, StepPart(step.program.batch_size, forward, gradients))


def _find_gradient(
    graph: StepGraph, weight: int, results: frozenset[int], values: Sequence[SSAValue]
) -> int | None:
    """Return the result of a layer that starts the update of a weight; of a tied weight its share."""
    size = elements(values[weight])
    pending, seen = [graph.replacements.get(weight, weight)], set()
    while pending:
        value = pending.pop()
        if value in results:
            return value
        producer = graph.producer.get(value)
        if producer is None or producer in seen:
            continue
        seen.add(producer)
        pending += [operand for operand in graph.operands[producer] if elements(values[operand]) == size]
    return None


def layer_names(step: StreamedStep) -> tuple[str, ...]:
    """Return names of layers in reports: the path that the forward ops share, else the first and the last."""
    roles, ops = step.cut.roles, step.program.ops
    shared, spans = [], []
    for layer in step.cut.layers:
        forward = [ops[op] for op in layer.forward if roles[op] is Role.FORWARD]
        paths = [path for path in layer_paths(forward) if path]
        prefix = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
        shared.append(".".join(names[0] for names in prefix))
        ends = [".".join(path) for path in (*paths[:1], *paths[-1:])]
        spans.append(" to ".join(dict.fromkeys(ends)))
    return tuple(
        name if name and shared.count(name) == 1 else span or f"layer {index + 1}"
        for index, (name, span) in enumerate(zip(shared, spans, strict=True))
    )
