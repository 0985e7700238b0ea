"""Runs a step whole, and cut into layers call by call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import graph_function, step_interface
from cgc.kernels.program import Program
from cgc.layers.cut import Cut, cut
from cgc.layers.functions import Function, part_module
from cgc.layers.graph import numbered_values, step_graph
from cgc.layers.labels import labels
from cgc.layers.norms import split_norms
from cgc.layers.schedule import schedule
from cgc.lowering.interpret import step_function
from cs_toolkit.schedule import Schedule, schedule_from_json

State = dict[str, np.ndarray]
Run = tuple[list[Any], State]
"""Outputs of each step, and the state after the last."""


@dataclass(frozen=True)
class CutStep:
    """A step in layers, with what runs it."""

    module: ModuleOp
    program: Program
    cut: Cut
    schedule: Schedule
    functions: tuple[Function, ...]


def cut_step(module: ModuleOp, recomputed: frozenset[int] = frozenset()) -> CutStep:
    """Cuts a copy of a module."""
    copy = module.clone()
    split_norms(copy)
    program = Program(copy)
    found = cut(step_graph(program), labels(program.ops))
    scheduled = schedule(found, program, recomputed)
    read = schedule_from_json(scheduled.schedule.to_json())
    assert read == scheduled.schedule
    return CutStep(copy, program, found, read, scheduled.functions)


def run_whole(module: ModuleOp, state: State, batches: Sequence[Sequence[np.ndarray]]) -> Run:
    """Runs the whole step."""
    interface, function = step_interface(module), jax.jit(step_function(module))
    values: Sequence[Any] = [state[spec.name] for spec in interface.state]
    found = []
    for batch in batches:
        values, outputs = function(values, batch)
        found.append([np.asarray(output) for output in outputs])
    return found, {spec.name: np.asarray(value) for spec, value in zip(interface.state, values, strict=True)}


def run_cut(step: CutStep, state: State, batches: Sequence[Sequence[np.ndarray]]) -> Run:
    """Runs a step in layers."""
    graph, program, like = step.cut.graph, step.program, graph_function(step.module)
    values = numbered_values(program)
    functions = [
        jax.jit(step_function(part_module(part, graph, program.ops, values, like))) for part in step.functions
    ]
    names = list(program.state.values())
    found, state = [], dict(state)
    for batch in batches:
        known: dict[int, Any] = {index: state[name] for index, name in enumerate(names)}
        known.update(enumerate(batch, len(names)))
        for call in step.schedule.calls():
            keys = [np.asarray(key, np.uint32).view(np.int32) for key in call.keys]
            weights = step.functions[call.function].weights
            arguments = [*(known[v] for v in call.arguments), *keys]
            _, results = functions[call.function](arguments[:weights], arguments[weights:])
            known.update(zip(call.results, results, strict=True))
        state.update({names[old]: np.asarray(known[new]) for old, new in graph.replacements.items()})
        found.append([np.asarray(known[value]) for value in graph.outputs])
    return found, state
