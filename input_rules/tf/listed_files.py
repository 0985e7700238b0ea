"""Files that a tf.data pipeline reads, counted where their names, or a pattern of them, are constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from input_rules.tf.graph import Traced
from input_rules.tf.nodes import input_lists

_HANDING_ON = ("Identity", "Reshape")


def names_of(node: Any) -> tuple[str, ...] | None:
    """The names of files that an operation delivers one by one; None where it delivers something else.

    What matches the pattern of `list_files` is looked up, as the run would.
    """
    if not node.type.startswith("TensorSlice"):
        return None
    components = input_lists(node)["components"]
    if len(components) != 1 or components[0].dtype != tf.string:
        return None
    tensor = components[0]
    value = tf.get_static_value(tensor)
    while value is None and tensor.op.type in _HANDING_ON:
        tensor = tensor.op.inputs[0]
        value = tf.get_static_value(tensor)
    if value is not None:
        return tuple(name.decode(errors="replace") for name in value.reshape(-1).tolist())
    return _matching(tensor.op) if tensor.op.type == "MatchingFiles" else None


def _matching(node: Any) -> tuple[str, ...] | None:
    patterns = tf.get_static_value(node.inputs[0])
    if patterns is None:
        return None
    try:
        return tuple(tf.io.gfile.glob([pattern.decode() for pattern in patterns.reshape(-1).tolist()]))
    except (tf.errors.OpError, UnicodeDecodeError):
        return None  # the run itself will say what is wrong with it


def with_listed_files(traced: Traced) -> Traced:
    """The same with `files` and `records`, the number of files, where a stage lists them by a pattern."""
    stages = []
    for stage in traced.pipeline.stages:
        nodes = traced.nodes[stage.name]
        if not stage.inputs and not {"files", "records", "reads"} & set(stage.attributes):
            names = names_of(nodes[0])
            if names is not None and all(node.type.startswith("Shuffle") for node in nodes[1:]):
                count = len(names)
                stage = replace(stage, attributes={**stage.attributes, "files": count, "records": count})
        stages.append(stage)
    return replace(traced, pipeline=replace(traced.pipeline, stages=tuple(stages)))
