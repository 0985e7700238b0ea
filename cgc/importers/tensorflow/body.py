"""Import the operations of a step in sequence, and collect their problems."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any, cast

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh.types import DTYPE_NAMES, dtype_name, shape_of, tensor_of
from cgc.errors import CompileError
from cgc.importers.diagnostics import Kind, Problem, RefusedError, unknown_operations
from cgc.importers.emit import NARROWED, Array, Emitter, narrow_dtype, require_dtype
from cgc.importers.tensorflow.constant_folding import (
    FOLD_LIMIT,
    Waiting,
    fold,
    fold_lazily,
    is_beyond_the_device,
    is_foldable,
    is_narrowed,
    narrow_floats,
)
from cgc.importers.tensorflow.handlers import dynamic_shapes
from cgc.importers.tensorflow.handlers.elementwise import ON_BITS
from cgc.importers.tensorflow.handlers.table import handler_of
from cgc.importers.tensorflow.handlers.tensor_lists import ON_LISTS
from cgc.importers.tensorflow.handlers.variables import DROPPED
from cgc.importers.tensorflow.node import (
    POISON,
    FloatBits,
    Missing,
    NodeContext,
    PaddedRows,
    PaddedSize,
    Result,
    SelectedRows,
    StepState,
    TensorList,
    Value,
)
from cgc.importers.tensorflow.origin import (
    CHOOSE,
    REMEDIES,
    describe_operation,
    describe_tensor,
    forward_name,
    layer_of,
    user_line,
)
from cgc.importers.tensorflow.plan import function_body, plan_function
from cs_toolkit.source_files import is_user_file

_HOST_TYPES = frozenset({"resource", "variant"})
# Ops whose results are no values on the device, whatever their element type.
_ANY_RESULT_TYPE = frozenset({"Const", "StatelessRandomGetKeyCounter", "Shape", "ShapeN", "Size", "Rank"})


class BodyImporter:
    """Imports operations in a given order.

    Attributes:
        values: the value of each tensor so far, by tensor name.
        problems: problems in graph order; of operations after a failed one only conversions to element types
            that CIRH does not have.
    """

    def __init__(
        self, emit: Emitter, step: StepState, values: dict[str, Value], scope: str = "", forward: str = ""
    ) -> None:
        """Create an importer.

        `scope` is the prefix of node names in a function that is inlined; `forward` is the prefix of the
        names by which `layer_of` finds layers.
        """
        self.values = values
        self.problems: list[Problem] = []
        self._emit = emit
        self._step = step
        self._scope = scope
        self._forward = forward

    def run(self, ops: Sequence[Any]) -> None:
        """Import operations; inputs come first."""
        unknown = [op for op in ops if not self._is_fed(op) and not self._import(op)]
        self.problems += unknown_operations(map(describe_operation, unknown), REMEDIES)

    def as_output(self, tensor: Any, value: Value) -> SSAValue:
        """Return a value as a result of the step; a known one becomes a constant.

        Raises:
            RefusedError: the tensor has no value on the device.
        """
        if isinstance(value, SSAValue):
            return value
        if isinstance(value, np.ndarray):
            self._emit.label(tensor.op.name, user_line(tensor.op), layer_of(tensor.op))
            return self._emit.constant(value)
        if isinstance(value, Waiting):
            require_dtype(tensor.dtype.name, tensor.name)
        if isinstance(value, PaddedRows | PaddedSize):
            raise RefusedError(
                Kind.SHAPE,
                f"{tensor.name} {describe_tensor(tensor)} has a size that depends on the data: the number "
                "of distinct values that tf.unique finds; use outputs that do not depend on it",
            )
        if isinstance(value, SelectedRows):
            raise RefusedError(
                Kind.SHAPE,
                f"{tensor.name} {describe_tensor(tensor)} has a size that depends on the data: the number "
                "of rows that a mask selects",
                CHOOSE,
            )
        raise RefusedError(
            Kind.USAGE,
            f"{tensor.name} {describe_tensor(tensor)} has no value on the device",
        )

    def _is_fed(self, op: Any) -> bool:
        """Return whether a batch feeds results of an operation; its other results have no value."""
        if not any(tensor.name in self.values for tensor in op.outputs):
            return False
        for tensor in op.outputs:
            self.values.setdefault(tensor.name, None)
        return True

    def _import(self, op: Any) -> bool:
        """Import one operation; return False if its type is unknown."""
        for tensor in op.outputs:
            self.values[tensor.name] = None if op.type in DROPPED else POISON
        if (text := describe_dropped_call(op)) is not None:
            self._step.dropped[text] = None
        if op.type in DROPPED:
            return True
        inputs = [self.values.get(tensor.name, POISON) for tensor in op.inputs]
        constant = self._step.constants.inputs(op, inputs)
        known = handler_of(op) is not None or is_foldable(op) or constant is not None
        if not known or any(value is POISON for value in inputs):
            if known:
                self._check_type_after_problem(op)
            return known
        self._label(op)
        try:
            if constant is None:
                results = self._import_in_float32(op, inputs)
                results = self._handle(op, inputs) if results is None else results
            else:
                arrays = [value for value in inputs if isinstance(value, np.ndarray)]
                folded = fold(op, arrays) if arrays and len(arrays) == len(inputs) else None
                results = folded or self._import_constants(op, inputs, constant)
            if results is None:
                return False
            self._check(op, results)
        except RefusedError as refusal:
            self._add_problem(op, refusal.kind, str(refusal), refusal.what_to_do)
        except (CompileError, ValueError, IndexError) as error:
            self._add_problem(op, Kind.USAGE, str(error))
        else:
            self.values.update(zip((t.name for t in op.outputs), results, strict=True))
        return True

    def _label(self, op: Any) -> None:
        """Set the origin of the ops that are emitted next."""
        self._emit.label(self._scope + op.name, user_line(op), layer_of(op, self._forward))

    def _import_constants(
        self, op: Any, inputs: Sequence[Value], constant: Sequence[Array | Waiting]
    ) -> tuple[Value, ...]:
        """Import an operation on constants if the device has it, else compute it here."""
        results: tuple[Value, ...] | None = None
        sized = all(tensor.shape.is_fully_defined() for tensor in op.outputs)
        if sized and handler_of(op) is not None and not is_beyond_the_device(op):
            with suppress(RefusedError):
                results = self._handle(op, inputs)
        if results is None:
            results = tuple(
                self._emit.compact(value)
                if isinstance(value, np.ndarray) and value.size > FOLD_LIMIT
                else value
                for value in fold_lazily(op, constant)
            )
        self._step.constants.note(op, constant, results)
        return results

    def _import_in_float32(self, op: Any, inputs: Sequence[Value]) -> tuple[Value, ...] | None:
        """Import a float64 operation in float32 where that is precise enough; None for all others."""
        of_step = self._step.constants.is_of_step(op, inputs)
        of_metrics = self._scope + op.name in self._step.of_metrics and is_narrowed(op)
        handler = handler_of(op)
        if handler is None or not (of_step or of_metrics):
            return None
        self._require_types(op, NARROWED)
        narrowed = [narrow_floats(value) for value in inputs]
        results = _as_tuple(handler(self._context(op, narrowed)), len(op.outputs))
        if of_step:
            self._step.constants.note_of_step(results)
        return results

    def _handle(self, op: Any, inputs: Sequence[Value]) -> tuple[Value, ...] | None:
        handler = handler_of(op)
        if any(isinstance(value, PaddedRows | PaddedSize) for value in inputs):
            handler = dynamic_shapes.handle_padded
        elif any(isinstance(value, SelectedRows) for value in inputs):
            handler = dynamic_shapes.handle_selected
        elif any(isinstance(value, TensorList | Missing) for value in inputs):
            handler = ON_LISTS.get(op.type, handler)
        elif any(isinstance(value, FloatBits) for value in inputs):
            handler = ON_BITS.get(op.type, handler)
        if handler is None:
            return None
        self._require_types(op)
        return _as_tuple(handler(self._context(op, inputs)), len(op.outputs))

    def _context(self, op: Any, inputs: Sequence[Value]) -> NodeContext:
        call = partial(self._call, op)
        return NodeContext(op, self._scope + op.name, inputs, self._emit, self._step, call)

    def _call(self, op: Any, function: str, arguments: Sequence[Value], scope: str) -> list[Value]:
        """Inline a function."""
        body = function_body(op, function)
        branch_or_iteration = scope.removeprefix(self._scope + op.name)
        forward = self._forward + forward_name(op) + branch_or_iteration
        values = dict(zip((tensor.name for tensor in body.inputs), arguments, strict=True))
        inner = BodyImporter(self._emit, self._step, values, f"{scope}/", f"{forward}/")
        if function not in self._step.plans:
            self._step.plans[function] = plan_function(body)
        inner.run(self._step.plans[function])
        self.problems += inner.problems
        self._label(op)
        return [inner.values[tensor.name] for tensor in body.outputs]

    @staticmethod
    def _require_types(op: Any, besides: Container[str] = ()) -> None:
        if op.type in _ANY_RESULT_TYPE:
            return
        for tensor in op.outputs:
            if not _has_known_type(tensor) and tensor.dtype.name not in besides:
                raise RefusedError(Kind.TYPE, f"its result is {describe_tensor(tensor)}")

    def _check_type_after_problem(self, op: Any) -> None:
        """Report a float that becomes another type; sizes, which are integers, may yet be folded."""
        if all(_has_known_type(tensor) for tensor in op.inputs) and any(
            t.dtype.is_floating for t in op.inputs
        ):
            try:
                self._require_types(op)
            except RefusedError as refusal:
                self._add_problem(op, refusal.kind, str(refusal), refusal.what_to_do)

    @staticmethod
    def _check(op: Any, results: Sequence[Value]) -> None:
        """Check the types of results against TensorFlow's; a difference is an error of the handler."""
        for tensor, value in zip(op.outputs, results, strict=True):
            if isinstance(value, PaddedRows):
                value = value.value
            if isinstance(value, SSAValue):
                got = dtype_name(tensor_of(value)), shape_of(value)
                name = tensor.dtype.base_dtype.name
                if got[0] not in (name, narrow_dtype(name)) or not tensor.shape.is_compatible_with(got[1]):
                    raise AssertionError(
                        f"{op.type} {op.name}: imported as {got}, TensorFlow says {describe_tensor(tensor)}"
                    )

    def _add_problem(self, op: Any, kind: Kind, message: str, what_to_do: str | None = None) -> None:
        about = describe_operation(op)
        about = replace(about, advice=what_to_do or about.advice)
        self.problems.append(about.problem(kind, message, REMEDIES))


def _has_known_type(tensor: Any) -> bool:
    """Return whether the device has the tensor's element type, or the host keeps the value."""
    name = tensor.dtype.base_dtype.name
    return name in DTYPE_NAMES or name in _HOST_TYPES


def _as_tuple(result: Result, count: int) -> tuple[Value, ...]:
    if isinstance(result, list | tuple):
        return tuple(result)
    return () if count == 0 else (cast(Value, result),)


_CHECK, _PRINT = "an assert", "tf.print"
# Names of operations for users. Summaries of TensorFlow 1 are not among them: they are outputs.
WORDS: Mapping[str, str] = {
    "Assert": _CHECK,
    "CheckNumerics": "check_numerics",
    "CheckNumericsV2": "check_numerics",
    "Print": "tf.compat.v1.Print",
    "PrintV2": _PRINT,
    "WriteHistogramSummary": "tf.summary",
    "WriteImageSummary": "tf.summary",
    "WriteScalarSummary": "tf.summary",
    "WriteSummary": "tf.summary",
}

# Files of TensorFlow, and of TensorBoard's summaries, with the functions that users call for these.
_HOMES = frozenset(
    {
        *("check_ops.py", "control_flow_assert.py", "numerics.py"),
        *("exceptions.py", "py_builtins.py"),  # of AutoGraph, for `assert` and `print`
        *("gen_array_ops.py", "gen_logging_ops.py", "logging_ops.py"),
        *("gen_summary_ops.py", "summary_ops_v2.py", "summary_v2.py"),
    }
)
# Files of TensorFlow whose frames lie between a call and the function.
_WRAPPERS = ("/tensorflow/python/util/", "/tensorflow/python/ops/weak_tensor_ops.py")


def describe_dropped_call(op: Any) -> str | None:
    """Return `tf.print at FILE:LINE` for an operation that the user called; None for one of a library."""
    if op.type not in WORDS:
        return None
    frames = [frame for frame in op.traceback or () if not any(w in frame.filename for w in _WRAPPERS)]
    for position in reversed(range(len(frames))):
        if is_user_file(frames[position].filename):
            called = frames[position + 1 : position + 2]
            if called and PurePath(called[0].filename).name in _HOMES:
                return f"{WORDS[op.type]} at {frames[position].filename}:{frames[position].lineno}"
            return None
    return None
