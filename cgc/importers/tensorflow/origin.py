"""The origin of an operation: the user's line, its layer, and its description in diagnostics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from itertools import groupby
from typing import Any

import tensorflow as tf

from cgc.cirh.base import LayerPath
from cgc.importers.diagnostics import Described, Kind, Operation
from cs_toolkit.source_files import innermost_user_line, toolkit_folders

_LINES = "_cs_layer_lines"  # attribute of the graph of a traced Keras model

TAPE = "gradient_tape/"  # scope of all that `tf.GradientTape` makes


def forward_op(op: Any) -> Any:
    """Return the operation that an operation is the gradient of, or part of the gradient of; or None.

    `tf.gradients` records it. `tf.GradientTape` opens a scope with the name of the forward operation.
    """
    record_line = getattr(op, "_original_op", None)
    if record_line is not None or not op.name.startswith(TAPE):
        return record_line
    scope = op.name.removeprefix(TAPE).rpartition("/")[0]
    while scope:
        with suppress(KeyError):
            return op.graph.get_operation_by_name(scope)
        scope = scope.rpartition("/")[0]
    return None


# Returns the line of a program that made a layer of Keras; None for a class of the user.
LayerLine = Callable[[Any], str | None]


@contextmanager
def record_layer_lines(model: Any, line_of: LayerLine) -> Iterator[None]:
    """Record in the body which line made the layer of each operation of a Keras model.

    Keras gives the operations of a layer a scope, whose name may also be that of another layer.

    Args:
        model: the model, which is traced in the body.
        line_of: returns the line that made a layer.
    """
    base: Any = next(kind for kind in type(model).__mro__ if kind.__name__ == "Layer")
    own = base.__call__

    @wraps(own)  # by the name of its module AutoGraph knows that it is Keras'
    def record_line(layer: Any, *arguments: Any, **keywords: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        result = own(layer, *arguments, **keywords)
        line = line_of(layer)
        if not hasattr(graph, _LINES):
            setattr(graph, _LINES, {})
        lines: dict[str, str | None] = getattr(graph, _LINES)
        for op in graph.get_operations()[first:]:
            lines.setdefault(op.name, line)  # layers inside of this one have been called before
        return result

    base.__call__ = record_line
    try:
        yield
    finally:
        base.__call__ = own


def user_line(op: Any) -> str | None:
    """Return the user's line for an operation; for a gradient, the line of its forward operation.

    In a traced Keras model that is the line that made the layer, or a line of the user's own layer or step;
    the lines that led to the tracing made none of it.
    """
    forward = forward_op(op)
    made = forward if forward is not None else op
    lines = getattr(made.graph, _LINES, None)
    if lines is not None:
        return lines.get(made.name) or _line_in_step(made)
    line = innermost_user_line(forward.traceback or ()) if forward is not None else None
    return line or innermost_user_line(op.traceback or ())


def _line_in_step(op: Any) -> str | None:
    """Return the user's line that follows the toolkit's call of a step that it traces."""
    frames = list(op.traceback or ())
    ours = [i for i, frame in enumerate(frames) if frame.filename.startswith(toolkit_folders())]
    return innermost_user_line(frames[ours[-1] + 1 :] if ours else frames)


# TensorFlow and Keras open a scope for each layer, and further scopes inside it for the parts of the layer.
# Prefix of the names of all operations that `tf.gradients` and `tf.GradientTape` make.
_TO_GRADIENTS = re.compile(r"^(.*/)?(gradients(_\d+)?|gradient_tape)/")

# Scopes inside a layer.
_INNER = frozenset(
    {
        *("moments", "batchnorm", "Tensordot", "random_uniform", "xentropy"),
        *("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"),
    }
)


def layer_of(op: Any, scope: str = "") -> LayerPath:
    """Return the layer of an operation; for a gradient that of its forward operation.

    "ln/batchnorm/sub" and "train/gradients/ln/moments/mean_grad/Mul" are of ("ln",). A scope that occurs
    twice in a row counts once: Keras opens the scope of a layer again for its call.

    Args:
        op: the tf.Operation.
        scope: prefix of names in a function that is inlined, see `forward_name`.
    """
    return _layer_of_scopes((scope + forward_name(op)).rpartition("/")[0])


@lru_cache(maxsize=4096)
def _layer_of_scopes(joined: str) -> LayerPath:
    scopes = joined.split("/") if joined else []
    while scopes and (scopes[-1].endswith("_grad") or scopes[-1] in _INNER):
        scopes.pop()
    return tuple(name for name, _ in groupby(scopes))


def forward_name(op: Any) -> str:
    """Return the name of the forward operation of a gradient operation, of others their own name.

    The gradient of a loop keeps its own name: it runs from the last iteration to the first, so that its
    iterations are not iterations of the loop.
    """
    forward = None if op.type.endswith("While") else forward_op(op)
    name = str((forward or op).name)
    return _TO_GRADIENTS.sub("", name) if "gradient" in name else name


_LOOPS = (
    "call tf.compat.v1.enable_control_flow_v2() before the graph is built, unroll the loop in Python, or "
    "compute it in the input function"
)
_BRANCHES = (
    "call tf.compat.v1.enable_control_flow_v2() before the graph is built, use tf.where, or decide in Python "
    "while the graph is built"
)
CHOOSE = "use tf.where(condition, x, y) or a mask"  # suggestion for a selection of rows
_SIZES = f"its result has a size that depends on the data; {CHOOSE}"
_REF_VARIABLES = "call tf.compat.v1.enable_resource_variables() before the graph is built"
_CANDIDATES = (
    "draw the candidates in the input function (tf.random.log_uniform_candidate_sampler) and give the loss "
    "all three of its results as sampled_values"
)
_HITS = "give the loss remove_accidental_hits=False, or make the mask in the input function"
_INPUT = "move it to the input function, which runs on the workers"

_ADVICE = {
    **dict.fromkeys(("Enter", "Exit", "NextIteration", "LoopCond"), _LOOPS),
    **dict.fromkeys(("Switch", "Merge"), _BRANCHES),
    **dict.fromkeys(
        ("Where", "DynamicPartition", "NonMaxSuppressionV3", "UniqueV2", "UniqueWithCounts"), _SIZES
    ),
    **dict.fromkeys(("LogUniformCandidateSampler", "UniformCandidateSampler"), _CANDIDATES),
    "ComputeAccidentalHits": _HITS,
    **dict.fromkeys(("PyFunc", "EagerPyFunc", "IteratorGetNext", "DecodeRaw", "ParseExample"), _INPUT),
}


REMEDIES = {
    Kind.UNKNOWN_OP: "write them with other TensorFlow operations, compute them in the input function, "
    "or train on this CPU (without cs_ip)",
    Kind.TYPE: "build the model with float32 (tf.cast(x, tf.float32)) and int32; "
    "turn strings into numbers in the input function",
}


def describe_operation(op: Any) -> Operation:
    """Describe a tf.Operation for diagnostics."""
    uses_ref = any(tensor.dtype.name.endswith("_ref") for tensor in (*op.inputs, *op.outputs))
    advice = _REF_VARIABLES if uses_ref else _ADVICE.get(op.type)
    return Operation(op.type, op.name, user_line(op), tuple(map(describe_tensor, op.outputs)), advice)


def describe_tensor(tensor: Any) -> Described:
    """Describe element type and shape of a tf.Tensor."""
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return Described(tensor.dtype.name, shape)
