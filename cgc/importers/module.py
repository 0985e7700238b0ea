"""Build the CIRH module around the body of an imported step, with the names of arguments and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Block, SSAValue

from cgc.cirh.interface import (
    ALIASING_OUTPUT,
    INPUT_NAME,
    MODE,
    OUTPUT_NAME,
    RESOURCE_NAME,
    SEED,
    build_graph_function,
)
from cgc.cirh.types import Tensor, tensor_type
from cgc.errors import GraphImportError
from cgc.importers.diagnostics import Kind, Problem, RefusedError, raise_if_any
from cgc.importers.emit import Emitter, dtype_of, require_dtype
from cs_toolkit.step import Mode

MODES: tuple[str, ...] = get_args(Mode)


@dataclass(frozen=True)
class StateTensor:
    """A tensor that a program keeps from step to step.

    Attributes:
        name: the program's name for it, which is its key in a checkpoint: "dense/kernel".
        resource_name: its name as state of the step: "state.model.dense/kernel".
        dtype: numpy name.
        shape: static.
    """

    name: str
    resource_name: str
    dtype: str
    shape: tuple[int, ...]


def require_mode(mode: str) -> None:
    """Check that a mode is one of `MODES`.

    Raises:
        GraphImportError: lists the modes.
    """
    if mode not in MODES:
        raise GraphImportError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")


def state_types(state: Iterable[StateTensor], remedies: Mapping[Kind, str]) -> list[Tensor]:
    """Return the types of the state as arguments of a step.

    Args:
        state: in the order of the arguments.
        remedies: see `raise_if_any`.

    Raises:
        GraphImportError: lists all tensors of types that CIRH lacks.
    """
    problems: list[Problem] = []
    types: list[Tensor] = []
    for tensor in state:
        try:
            dtype = require_dtype(tensor.dtype, f"variable {tensor.name}")
            types.append(tensor_type(tensor.shape, dtype))
        except RefusedError as refusal:
            problems.append(Problem(refusal.kind, str(refusal)))
    raise_if_any(problems, remedies)
    return types


def count_step(emit: Emitter, step: SSAValue) -> SSAValue:
    """Return the global step after this step, for programs that do not count themselves."""
    emit.label("global_step", None, ())
    return emit.add(step, emit.constant(np.asarray(1, dtype_of(step))))


def step_module(
    block: Block,
    state: Sequence[StateTensor],
    written: Mapping[str, SSAValue],
    outputs: Mapping[str, SSAValue],
    mode: str,
    seed: int,
) -> ModuleOp:
    """Build the module of a step.

    Args:
        block: all ops; its arguments are the state, then the inputs of a batch.
        state: the first arguments.
        written: resource name -> new value of the state that the step replaces; the first results.
        outputs: name, without "output_", -> value; the other results.
        mode: one of `MODES`.
        seed: seed of random operations that have none.
    """
    terminator = ReturnOp(*written.values(), *outputs.values())
    block.add_op(terminator)
    places = {name: position for position, name in enumerate(written)}
    arguments: list[dict[str, Attribute]] = []
    for name in (tensor.resource_name for tensor in state):
        attributes: dict[str, Attribute] = {RESOURCE_NAME: StringAttr(name)}
        if name in places:
            attributes[ALIASING_OUTPUT] = IntegerAttr(places[name], i64)
        arguments.append(attributes)
    inputs = len(block.args) - len(state)
    arguments += [{INPUT_NAME: StringAttr(f"input_{i}")} for i in range(inputs)]
    results: list[dict[str, Attribute]] = [{} for _ in written]
    results += [{OUTPUT_NAME: StringAttr(f"output_{name}")} for name in outputs]
    function = build_graph_function(block, terminator, arguments, results)
    function.attributes[MODE] = StringAttr(mode)
    function.attributes[SEED] = IntegerAttr(seed, i64)
    return ModuleOp([function])
