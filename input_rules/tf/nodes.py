"""Operations of a graph that are datasets: their kind, what they read, their constants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

_VALUES = re.compile("Ragged|Serialize|TensorList|EmptyTensor|TensorMap|Optional")
"""What makes variants of other kinds: ragged, sparse and optional values, lists and maps of tensors."""


def kind_of(operation: str) -> str:
    """The name of an operation without its version."""
    return re.sub(r"V\d+$", "", operation)


def constant(node: Any, name: str) -> int | None:
    """A number that an operation is given; None where it is computed, or the operation has none so named."""
    lists = input_lists(node)
    value = tf.get_static_value(lists[name][0]) if name in lists else None
    return None if value is None else int(value)


def dataset_inputs(node: Any) -> list[Any]:
    """The operations of the datasets that a dataset reads, in the order of its arguments."""
    return [tensor.op for tensor in node.inputs if is_dataset(tensor)]


def is_dataset(tensor: Any) -> bool:
    """Whether a tensor is a dataset, and no variant of another kind."""
    return tensor.dtype == tf.variant and not _VALUES.match(tensor.op.type)


def in_order(last: Any) -> Iterator[Any]:
    """All dataset operations that one depends on, and itself, inputs first."""
    seen: set[str] = set()
    stack: list[tuple[Any, bool]] = [(last, False)]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            yield node
        elif node.name not in seen:
            seen.add(node.name)
            stack.append((node, True))
            stack.extend((other, False) for other in reversed(dataset_inputs(node)))


def input_lists(node: Any) -> dict[str, list[Any]]:
    """The inputs of an operation by the names of its definition; each is a list."""
    tensors = list(node.inputs)
    result = {}
    for argument in node.op_def.input_arg:
        count = 1
        if argument.number_attr:
            count = node.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(node.get_attr(argument.type_list_attr))
        result[argument.name], tensors = tensors[:count], tensors[count:]
    return result


def allow_any_order(node: Any) -> bool:
    """Whether the options of an operation say that the order of elements does not matter."""
    options = dataset_options_pb2.Options.FromString(node.get_attr("serialized_options"))
    return bool(options.WhichOneof("optional_deterministic")) and not options.deterministic
