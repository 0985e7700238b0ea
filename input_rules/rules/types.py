"""Tensors no wider than the system computes in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from input_rules.findings import Finding, Gain
from input_rules.pipeline import Pipeline, Stage, Tensor
from input_rules.rules.context import Context, finding

NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def wide(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """64 bits where 32 are computed in; what one call makes of one type is one finding."""
    made: dict[tuple[str, str], list[Tensor]] = {}
    for tensor in pipeline.element:
        if tensor.dtype in NARROW:
            made.setdefault((_maker(pipeline, tensor).name, tensor.dtype), []).append(tensor)
    for (stage, dtype), tensors in made.items():
        narrow = NARROW[dtype]
        yield finding(
            "dtype-wide",
            "info" if "int" in dtype else "warning",
            pipeline.by_name[stage],
            f"{_listed(tensors)} {dtype}, the system computes in 32 bits: twice the memory is made, batched "
            "and copied",
            f"tf.cast(x, tf.{narrow}) as early as possible"
            if pipeline.framework == "tensorflow"
            else f"{narrow} in the dataset",
            _bytes_spared(tensors),
        )


def _listed(tensors: Sequence[Tensor]) -> str:
    """`a is`, `a and b are`, `a, b, c and 2 more are`."""
    names = [tensor.name for tensor in tensors]
    if len(names) == 1:
        return f"{names[0]} is"
    if len(names) > _NAMED:
        names = [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} more"]
    return f"{', '.join(names[:-1])} and {names[-1]} are"


_NAMED = 6
"""So many components are named at most."""


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


def _bytes_spared(tensors: Sequence[Tensor]) -> Gain:
    """Half of the bytes of tensors of one type, as numbers where their sizes are known."""
    if any(tensor.shape is None or None in tensor.shape for tensor in tensors):
        return Gain("expected", "half of its bytes" if len(tensors) == 1 else "half of their bytes")
    wide = int("".join(filter(str.isdigit, tensors[0].dtype))) // 8
    count = sum(prod(size for size in tensor.shape or () if size is not None) for tensor in tensors)
    return Gain("expected", f"{count * wide:,} bytes a batch become {count * wide // 2:,}")


RULES = (wide,)
