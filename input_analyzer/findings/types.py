"""Tensors no wider than the system computes in."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from input_analyzer.analysis import Finding, Gain
from input_analyzer.findings.context import Context, component, finding
from input_analyzer.pipeline import Pipeline, Stage, Tensor

NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def wide(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """64 bits where 32 are computed in."""
    for tensor in pipeline.element:
        if tensor.dtype in NARROW:
            narrow = NARROW[tensor.dtype]
            yield finding(
                "dtype-wide",
                "info" if "int" in tensor.dtype else "warning",
                _maker(pipeline, tensor),
                f"{component(pipeline, tensor)} is {tensor.dtype}, the system computes in 32 bits: twice the "
                "memory is made, batched and copied",
                f"tf.cast(x, tf.{narrow}) as early as possible"
                if pipeline.framework == "tensorflow"
                else f"{narrow} in the dataset",
                _bytes_spared(tensor),
            )


def _maker(pipeline: Pipeline, tensor: Tensor) -> Stage:
    """The stage from which on a tensor has its type, as far as there is one way to it; else the last one."""
    index = pipeline.element.index(tensor)
    stage = pipeline.last
    while len(stage.inputs) == 1:
        before = pipeline.by_name[stage.inputs[0]]
        types = before.attributes.get("types")
        # With other components nobody can tell which of them becomes this one.
        if (
            not isinstance(types, tuple)
            or len(types) != len(pipeline.element)
            or types[index] != tensor.dtype
        ):
            break
        stage = before
    return stage


def _bytes_spared(tensor: Tensor) -> Gain:
    """Half of the bytes of an element, as numbers where its size is known."""
    if tensor.shape is None or None in tensor.shape:
        return Gain("expected", "half of its bytes")
    wide = int("".join(filter(str.isdigit, tensor.dtype))) // 8
    count = prod(size for size in tensor.shape if size is not None)
    return Gain("expected", f"{count * wide:,} bytes a batch become {count * wide // 2:,}")


RULES = (wide,)
