"""From a tf.Graph to one CIRH module: the whole step, forward, backward and update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from xdsl.dialects.builtin import ModuleOp

from cgc.importers.faults import Fault, RefusedError, raise_if_any
from cgc.importers.tensorflow.assemble import assemble, check_inputs
from cgc.importers.tensorflow.faults import REMEDIES
from cgc.importers.tensorflow.plan import plan_step


@dataclass(frozen=True)
class ImportedStep:
    """A step as CIRH.

    Attributes:
        module: one function `@graph`; its arguments are the state in the order in which the variables were
            created, then the batch; its results the new state, then the outputs.
        variables: resource name -> name of the TensorFlow variable, which is its key in a checkpoint.
        dropped: what the user has asked for and the step leaves out, each as `tf.print at FILE:LINE`.
    """

    module: ModuleOp
    variables: dict[str, str]
    dropped: tuple[str, ...]


def import_step(
    graph: tf.Graph,
    *,
    inputs: Sequence[tf.Tensor],
    outputs: Mapping[str, tf.Tensor],
    updates: Sequence[tf.Operation | tf.Tensor],
    mode: str,
    seed: int,
    global_step: Any = None,
) -> ImportedStep:
    """Imports one step of a graph: what the outputs and updates need, and nothing else.

    Reads of a variable that no edge of the graph puts behind a write see the value before the step. Keras
    layers of the step update their own state (see `keras_layer_updates`).

    Args:
        graph: a tf.compat.v1 graph with resource variables.
        inputs: tensors of the graph that a batch feeds, in batch order, of static shape.
        outputs: name -> tensor; becomes the output `output_<name>`, in this order.
        updates: operations that change variables (the train op, metric updates).
        mode: "train", "eval" or "infer".
        seed: seeds random operations that have no seed of their own.
        global_step: the variable of the step number; by default the graph's own.

    Returns:
        The module and the names of its state. The same program gives the same text.

    Raises:
        GraphImportError: everything that is wrong with the graph, at once. The class tells the first kind of
            fault: UnsupportedOpsError, GraphTypeError, DynamicShapeError.
    """
    check_inputs(inputs, mode)
    roots = [tensor.op for tensor in outputs.values()]
    roots += [item if isinstance(item, tf.Operation) else item.op for item in updates]
    try:
        plan = plan_step(graph, roots, {tensor.name for tensor in inputs}, global_step)
    except RefusedError as refusal:
        raise_if_any([Fault(refusal.kind, str(refusal))], REMEDIES)
        raise
    module, dropped = assemble(plan, inputs, outputs, mode, seed)
    return ImportedStep(module, {v.resource_name: v.name for v in plan.variables.values()}, dropped)
