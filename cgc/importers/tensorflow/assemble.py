"""A planned step as a CIRH module: its operations imported, its arguments and results named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, SSAValue

from cgc.cirh.types import Tensor, tensor_type
from cgc.errors import GraphImportError
from cgc.importers.emit import Emitter, dtype_of, require_dtype
from cgc.importers.faults import Fault, Kind, RefusedError, raise_if_any
from cgc.importers.module import MODES, step_module
from cgc.importers.tensorflow import walk
from cgc.importers.tensorflow.body import BodyImporter
from cgc.importers.tensorflow.faults import REMEDIES, describe_tensor, where
from cgc.importers.tensorflow.node import POISON, StepState, Value
from cgc.importers.tensorflow.plan import StepPlan
from cgc.importers.tensorflow.variables import Variable


def check_inputs(inputs: Sequence[tf.Tensor], mode: str) -> None:
    """Refuses an unknown mode, and tensors that no batch can feed, all at once.

    Raises:
        GraphImportError: see `import_step`.
    """
    if mode not in MODES:
        raise GraphImportError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
    faults: list[Fault] = []
    for tensor in inputs:
        try:
            _input_type(tensor)
        except RefusedError as refusal:
            faults.append(Fault(refusal.kind, str(refusal)))
    raise_if_any(faults, REMEDIES)


def assemble(
    plan: StepPlan,
    inputs: Sequence[tf.Tensor],
    outputs: Mapping[str, tf.Tensor],
    mode: str,
    seed: int,
    known: Mapping[str, Value] | None = None,
) -> ModuleOp:
    """Imports the operations of a plan.

    Args:
        plan: the operations in order, and the variables.
        inputs: tensors that a batch feeds, which `check_inputs` has checked.
        outputs: name -> tensor; becomes `output_<name>`.
        mode: "train", "eval" or "infer".
        seed: seeds random operations that have no seed of their own.
        known: values of tensors that no operation of the plan gives, by name.

    Raises:
        GraphImportError: see `import_step`.
    """
    state_types = _state_types(plan.variables.values())
    block = Block(arg_types=[*state_types, *map(_input_type, inputs)])
    fed = dict(zip((tensor.name for tensor in inputs), block.args[len(state_types) :], strict=True))
    step = _initial_state(plan, block, mode, seed)
    if mode == "eval":
        step.of_metrics = _of_metrics(plan, outputs)
    emit = Emitter(block)
    body = BodyImporter(emit, step, {**(known or {}), **fed})
    body.run(plan.ops)
    results = _results(outputs, body)
    raise_if_any(body.faults, REMEDIES)
    if len(results) != len(outputs):
        raise AssertionError(
            f"of outputs {list(outputs)} only {list(results)} were imported, without a fault"
        )
    if plan.counts_steps:
        _count_step(plan, step, emit)
    written = [variable for key, variable in plan.variables.items() if key in step.written]
    block.add_op(ReturnOp(*(step.current[variable.key] for variable in written), *results.values()))
    resources = [variable.resource_name for variable in plan.variables.values()]
    replaced = [variable.resource_name for variable in written]
    return step_module(block, resources, replaced, len(inputs), list(results), mode, seed)


def _input_type(tensor: tf.Tensor) -> Tensor:
    what = f"input {tensor.name} {describe_tensor(tensor)}, {where(tensor.op)}"
    dtype = require_dtype(tensor.dtype.name, what)
    if not tensor.shape.is_fully_defined():
        raise RefusedError(
            Kind.SHAPE,
            f"{what}: expected a size for every dimension; batch the dataset with "
            "batch(n, drop_remainder=True), and give other tensors their shape with set_shape()",
        )
    return tensor_type(tensor.shape.as_list(), dtype)


def _state_types(variables: Iterable[Variable]) -> list[Tensor]:
    faults: list[Fault] = []
    types: list[Tensor] = []
    for variable in variables:
        try:
            dtype = require_dtype(variable.dtype, f"variable {variable.name}")
            types.append(tensor_type(variable.shape, dtype))
        except RefusedError as refusal:
            faults.append(Fault(refusal.kind, str(refusal)))
    raise_if_any(faults, REMEDIES)
    return types


def _initial_state(plan: StepPlan, block: Block, mode: str, seed: int) -> StepState:
    current: dict[str, SSAValue] = dict(zip(plan.variables, block.args, strict=False))
    global_step = current.get(plan.global_step) if plan.global_step is not None else None
    return StepState(plan.variables, current, seed, mode, global_step, plan.advances_global_step)


def _of_metrics(plan: StepPlan, outputs: Mapping[str, tf.Tensor]) -> frozenset[str]:
    """Names of the operations that no output needs: what they compute goes into metrics."""
    needed = walk.reachable(
        [tensor.op for tensor in outputs.values()], lambda op: [tensor.op for tensor in op.inputs]
    )
    return frozenset(op.name for op in plan.ops) - {op.name for op in needed}


def _count_step(plan: StepPlan, step: StepState, emit: Emitter) -> None:
    """Adds one to a global step of which the graph knows nothing."""
    assert plan.global_step is not None
    count = step.current[plan.global_step]
    emit.label("global_step", None, ())
    step.current[plan.global_step] = emit.add(count, emit.constant(np.asarray(1, dtype_of(count))))
    step.written.add(plan.global_step)


def _results(outputs: Mapping[str, tf.Tensor], body: BodyImporter) -> dict[str, SSAValue]:
    """The outputs by name; adds a fault for one that has no value on the device."""
    found: dict[str, SSAValue] = {}
    for name, tensor in outputs.items():
        value = body.values.get(tensor.name)
        if value is POISON:
            continue
        try:
            found[f"output_{name}"] = body.as_output(tensor, value)
        except RefusedError as refusal:
            body.faults.append(Fault(refusal.kind, f"output {name}: {refusal}"))
    return found
