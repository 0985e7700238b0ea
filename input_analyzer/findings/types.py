"""Tensors no wider than the system computes in."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from input_analyzer.analysis import Finding, Gain
from input_analyzer.findings.context import Context, finding
from input_analyzer.pipeline import Pipeline, Tensor

NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def wide(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """64 bits where 32 are computed in."""
    for tensor in pipeline.element:
        if tensor.dtype in NARROW:
            narrow = NARROW[tensor.dtype]
            yield finding(
                "dtype-wide",
                "info" if "int" in tensor.dtype else "warning",
                pipeline.last,
                f"'{tensor.name}' is {tensor.dtype}, the system computes in 32 bits: twice the memory is "
                "made, batched and copied",
                f"tf.cast(x, tf.{narrow}) as early as possible"
                if pipeline.framework == "tensorflow"
                else f"{narrow} in the dataset",
                _bytes_spared(tensor),
            )


def _bytes_spared(tensor: Tensor) -> Gain:
    """Half of the bytes of an element, as numbers where its size is known."""
    if tensor.shape is None or None in tensor.shape:
        return Gain("expected", "half of its bytes")
    wide = int("".join(filter(str.isdigit, tensor.dtype))) // 8
    count = prod(size for size in tensor.shape if size is not None)
    return Gain("expected", f"{count * wide:,} bytes a batch become {count * wide // 2:,}")


RULES = (wide,)
