"""What the function of a `map`, `interleave` or the like does, told by the operations in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from tensorflow.python.framework import op_def_registry

from input_analyzer.pipeline import Value

_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"})
# Operations that only hand on, name or reshape what they get.
_FREE = frozenset(
    {
        *("Identity", "IdentityN", "NoOp", "Const", "Placeholder", "Reshape", "ExpandDims", "Squeeze"),
        *("EnsureShape", "Shape", "Pack", "Unpack", "StridedSlice"),
    }
)
# What works on one record at a time and has no form for a batch of them.
_SINGLE = re.compile(
    r"Decode(Jpeg|Png|Gif|Bmp|Image|WebP|Wav|AndCrop|Compressed)|ExtractJpeg|ReadFile|(Stateless)?(If|While)$|"
    r"(Stateless)?SampleDistorted|EncodeJpeg|EncodePng|MatchingFiles|Unique|Where$|Dataset"
)


def traits(node: Any, functions: Mapping[str, Any]) -> dict[str, Value]:
    """What the functions of a dataset operation do; empty where it has none.

    Args:
        node: The operation.
        functions: The graph's library: FunctionDef by name.

    Returns:
        `function` (the Python function's name), `python` (calls Python for every element), `random` (draws
        numbers that depend on how often it was called), `free` (computes nothing), `single` (works on one
        record at a time), `reads` (kind of the files that it reads).
    """
    names = [name for value in node.node_def.attr.values() for name in _named(value)]
    if not names:
        return {}
    kinds = set(_operations(names, functions))
    readers = sorted(
        re.sub(r"V\d+$", "", k) for k in kinds if re.match(r"(TFRecord|TextLine|FixedLength)", k)
    )
    found: dict[str, Value] = {
        "function": _python_name(names[0]),
        "python": bool(kinds & _PYTHON),
        "random": any(_is_random(kind) for kind in kinds),
        "free": kinds <= _FREE,
        "single": any(_SINGLE.match(kind) or kind in _PYTHON for kind in kinds),
    }
    if readers:
        found["reads"] = readers[0]
    return found


def _named(value: Any) -> Iterator[str]:
    if value.HasField("func"):
        yield value.func.name
    for function in value.list.func:
        yield function.name


def _operations(names: list[str], functions: Mapping[str, Any]) -> Iterator[str]:
    """Kinds of all operations of some functions and of those that they call."""
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for node in functions[name].node_def:
            called = [inner for value in node.attr.values() for inner in _named(value)]
            waiting += called
            if node.op in functions:
                waiting.append(node.op)
            elif "PartitionedCall" not in node.op:
                yield node.op


@cache
def _is_random(kind: str) -> bool:
    """Whether an operation draws random numbers out of a state, and not as a function of a key."""
    definition = op_def_registry.get(kind)
    if definition is None or not definition.is_stateful or kind.endswith("Dataset"):
        return False
    names = {attribute.name for attribute in definition.attr}
    return {"seed", "seed2"} <= names


def _python_name(name: str) -> str | None:
    """`__inference_Dataset_map_convert_12` -> `convert`; None for names of another form."""
    match = re.match(r"__inference_Dataset_[a-z]+(?:_[a-z]+)*?_(.+?)_\d+$", name)
    return match.group(1) if match and match.group(1).isidentifier() else None
