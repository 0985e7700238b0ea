"""A step as weight streaming executes it: the calls, and a module for each function that they call."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import graph_function
from cgc.kernels.program import Program
from cgc.layers.cut import Cut, cut
from cgc.layers.functions import Function, part_module
from cgc.layers.graph import numbered_values, step_graph
from cgc.layers.labels import labels
from cgc.layers.norms import split_norms
from cgc.layers.pieces import piece_module
from cgc.layers.schedule import schedule
from cs_toolkit.schedule import Schedule


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
    """

    module: ModuleOp
    program: Program
    cut: Cut
    schedule: Schedule
    functions: tuple[Function, ...]
    modules: tuple[ModuleOp, ...]


def streamed_step(module: ModuleOp, recomputed: frozenset[int] = frozenset()) -> StreamedStep:
    """Cuts a step into layers.

    Args:
        module: the step as the passes leave it; it is not changed.
        recomputed: layers whose backward part computes the forward part again, instead of keeping its values.
    """
    copy = module.clone()
    split_norms(copy)
    program = Program(copy)
    return _scheduled(copy, program, cut(step_graph(program), labels(program.ops)), recomputed)


def recomputing(step: StreamedStep, recomputed: frozenset[int]) -> StreamedStep:
    """The same cut with other layers recomputed, see `streamed_step`."""
    return _scheduled(step.module, step.program, step.cut, recomputed)


def _scheduled(module: ModuleOp, program: Program, found: Cut, recomputed: frozenset[int]) -> StreamedStep:
    values, like = numbered_values(program), graph_function(module)
    scheduled = schedule(found, program, like, recomputed)

    def made(part: Function) -> ModuleOp:
        pieces = piece_module(part, found.graph, program.ops, values, like) if part.in_pieces else None
        return pieces or part_module(part, found.graph, program.ops, values, like)

    modules = tuple(map(made, scheduled.functions))
    return StreamedStep(module, program, found, scheduled.schedule, scheduled.functions, modules)
