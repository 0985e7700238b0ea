"""Runs a step whole, and cut into layers call by call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import step_interface
from cgc.layers.pieces import PIECE_ELEMENTS
from cgc.layers.streamed import StreamedStep, streamed_step
from cgc.lowering.interpret import step_function
from cs_system.engine.micro_batches import micro_batches
from cs_toolkit.layered_step import SMALL_BYTES, Call, Sweep, schedule_from_json

State = dict[str, np.ndarray]
Run = tuple[list[Any], State]
"""Outputs of each step, and the state after the last."""


def cut_step(
    module: ModuleOp, recomputed: frozenset[int] = frozenset(), micro_batches: int = 1
) -> StreamedStep:
    """Cuts a module, and checks that its schedule survives as text."""
    step = streamed_step(module, recomputed, micro_batches)
    assert schedule_from_json(step.schedule.to_json()) == step.schedule
    return step


def run_whole(module: ModuleOp, state: State, batches: Sequence[Sequence[np.ndarray]]) -> Run:
    """Runs the whole step."""
    interface, function = step_interface(module), jax.jit(step_function(module))
    values: Sequence[Any] = [state[spec.name] for spec in interface.state]
    found = []
    for batch in batches:
        values, outputs = function(values, batch)
        found.append([np.asarray(output) for output in outputs])
    return found, {spec.name: np.asarray(value) for spec, value in zip(interface.state, values, strict=True)}


COMBINED = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def _run_call(call: Call, step: StreamedStep, functions: Sequence[Any], known: dict[int, Any]) -> None:
    keys = [np.asarray(key, np.uint32).view(np.int32) for key in call.keys]
    weights = step.functions[call.function].weights
    arguments = [*(known[v] for v in call.arguments), *keys]
    _, results = functions[call.function](arguments[:weights], arguments[weights:])
    known.update(zip(call.results, results, strict=True))


def run_cut(step: StreamedStep, state: State, batches: Sequence[Sequence[np.ndarray]]) -> Run:
    """Runs a step in layers."""
    schedule = step.schedule
    functions = [jax.jit(step_function(module)) for module in step.modules]
    found, state = [], dict(state)
    for batch in batches:
        known: dict[int, Any] = {number: state[name] for name, number in schedule.state.items()}
        totals: dict[int, Any] = {}
        if schedule.before:
            _run_call(schedule.before, step, functions, known)
        for part in micro_batches(schedule, batch):
            known.update(part)
            for call in schedule.wafer_calls():
                _run_call(call, step, functions, known)
            for number, kind in schedule.micro.totals.items():
                share = np.asarray(known[number])
                totals[number] = COMBINED[kind](totals[number], share) if number in totals else share
        known.update(totals)
        known.update(zip(schedule.inputs, batch, strict=True))
        for call in schedule.update_calls():
            if isinstance(call, Sweep):
                known.update(_swept(call, functions[call.function], step, known))
            else:
                _run_call(call, step, functions, known)
        names = {number: name for name, number in schedule.state.items()}
        state.update({names[old]: np.asarray(known[new]) for old, new in schedule.replacements.items()})
        found.append([np.asarray(known[value]) for value in schedule.outputs])
    return found, state


def _swept(sweep: Sweep, function: Any, step: StreamedStep, known: dict[int, Any]) -> State:
    """New values of a sweep by number, each tensor in separate blocks."""
    weights = step.functions[sweep.function].weights
    found = {}
    for tensor in range(len(sweep.made[0])):
        numbers = [taken[min(tensor, len(taken) - 1)] for taken in sweep.taken]
        shapes = [known[number].shape for number in numbers]
        size = max(math.prod(shape) for shape in shapes)
        pieces = []
        for start in range(0, size, PIECE_ELEMENTS):
            arguments = [_piece(np.asarray(known[number]), start, size) for number in numbers]
            _, results = function(arguments[:weights], arguments[weights:])
            pieces.append([np.asarray(result) for result in results])
        for made, parts in zip(sweep.made, zip(*pieces, strict=True), strict=True):
            shape = step.schedule.values[made[tensor]].shape
            found[made[tensor]] = np.concatenate(parts)[:size].reshape(shape)
    return found


def _piece(array: np.ndarray, start: int, size: int) -> np.ndarray:
    if array.size != size or array.nbytes <= SMALL_BYTES:
        return array
    part = array.reshape(-1)[start : start + PIECE_ELEMENTS]
    return np.pad(part, (0, PIECE_ELEMENTS - part.size))
