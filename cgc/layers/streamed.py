"""A step as weight streaming executes it: the calls, and a module for each function that they call."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.copies import copied
from cgc.kernels.program import Program
from cgc.layers.cut import Cut, cut
from cgc.layers.functions import Function, part_module
from cgc.layers.graph import step_graph
from cgc.layers.micro.rewrite import MicroStep, micro_step
from cgc.layers.norms import has_joint_norms, split_norms
from cgc.layers.pieces import piece_module
from cgc.layers.schedule import schedule
from cs_toolkit.layered_step import Schedule


@dataclass(frozen=True)
class StreamedStep:
    """A step in layers.

    Attributes:
        module: what was cut: the step with norms of its own for each tensor.
        program: the same, as the compiler reads it.
        cut: of the module.
        schedule: the calls.
        functions: what they call, by number.
        modules: of each function, with weights as state and everything else as inputs.
        micro: how the step was rewritten for micro-batches; None where the batch is computed at once.
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
        """In how many parts a batch goes through the layers."""
        return 1 if self.micro is None else self.micro.count

    @property
    def batch_size(self) -> int:
        """Samples of a step."""
        return self.micro_batches * self.program.batch_size


def streamed_step(
    module: ModuleOp, recomputed: frozenset[int] = frozenset(), micro_batches: int = 1
) -> StreamedStep:
    """Cuts a step into layers.

    Args:
        module: the step as the passes leave it; it is not changed.
        recomputed: layers whose backward part computes the forward part again, instead of keeping its values.
        micro_batches: in how many parts the batch goes through the layers.

    Raises:
        NotSplitError: the samples of the batch need each other, so that there are no micro-batches.
    """
    micro = micro_step(module, micro_batches) if micro_batches > 1 else None
    own = module if micro is None else micro.module
    if has_joint_norms(own):
        own = copied(module) if micro is None else own
        split_norms(own)
    program = Program(own)
    return _scheduled(own, program, cut(step_graph(program, micro)), recomputed, micro)


def recomputing(step: StreamedStep, recomputed: frozenset[int]) -> StreamedStep:
    """The same cut with other layers recomputed, see `streamed_step`."""
    return _scheduled(step.module, step.program, step.cut, recomputed, step.micro)


def _scheduled(
    module: ModuleOp, program: Program, found: Cut, recomputed: frozenset[int], micro: MicroStep | None
) -> StreamedStep:
    values, like = program.values, program.function
    scheduled = schedule(found, program, recomputed, micro)

    def made(part: Function) -> ModuleOp:
        pieces = piece_module(part, found.graph, program.ops, values, like) if part.in_pieces else None
        return pieces or part_module(part, found.graph, program.ops, values, like)

    modules = tuple(map(made, scheduled.functions))
    return StreamedStep(module, program, found, scheduled.schedule, scheduled.functions, modules, micro)
