"""A part of a graph that is built as if it were alone in it, and the checkpoint it starts from."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from estimator import checkpoints
from estimator.errors import CheckpointReadError

log = logging.getLogger("estimator")


@contextmanager
def own_scope(name: str) -> Iterator[Any]:
    """Within it, variables and operations of the present graph have names below `<name>/`, the graph's
    collections (trainable variables, losses, updates, summaries) hold what is made within alone, and the
    global step is a counter of its own.

    Yields:
        That counter, `<name>/global_step`.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    graph = v1.get_default_graph()
    _restart_keras_names(graph)
    # A variable scope makes a name scope with a number where one of that name exists; this one must not.
    scope = v1.variable_scope(name, auxiliary_name_scope=False)
    with _own_collections(graph), scope, tf.name_scope(f"{name}/"):
        yield v1.get_variable(
            v1.GraphKeys.GLOBAL_STEP,
            shape=[],
            dtype=tf.int64,
            initializer=v1.zeros_initializer(),
            trainable=False,
            collections=[v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.GLOBAL_STEP],
        )


def start_from(checkpoint: str, scope: str) -> None:
    """Makes the initializers of the variables in an `own_scope` read a checkpoint; called within the scope.

    Args:
        checkpoint: Prefix, or a directory, of which it is the newest. It is of the model alone, whose
            variables have no scope in their names, or of a program in which the model has had this scope.
        scope: Name of the scope.

    Raises:
        CheckpointReadError: it is missing or damaged, lacks a trainable variable, or a shape differs.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    variables = {variable.op.name: variable for variable in v1.global_variables()}
    trainable = [variable.op.name for variable in v1.trainable_variables()]
    with checkpoints.reading(checkpoint) as reader:
        names = _names_in(reader.get_variable_to_shape_map(), variables, trainable, scope)
        lacking = [name for name in trainable if name not in names]
        if lacking:
            raise CheckpointReadError(
                checkpoint, f"it lacks the variables {', '.join(lacking)} of model '{scope}'"
            )
        v1.train.init_from_checkpoint(checkpoint, {names[name]: variables[name] for name in names})
    others = [name for name in variables if name not in names]
    if others:
        log.warning(
            "checkpoint '%s' lacks %s: these start from initial values", checkpoint, ", ".join(others)
        )
    log.info("model '%s' starts from checkpoint %s", scope, checkpoint)


def _names_in(
    known: Collection[str], variables: Iterable[str], trainable: Iterable[str], scope: str
) -> dict[str, str]:
    """Names of variables -> those that a checkpoint knows them by."""
    with_scope = all(name in known for name in trainable)
    found = {name: name for name in variables} if with_scope else alone_names(variables, scope)
    return {name: there for name, there in found.items() if there in known}


def alone_names(variables: Iterable[str], scope: str) -> dict[str, str]:
    """Names of the variables of a scope -> those that they have without the scope.

    An optimizer names a slot after its variable, and puts it into the present scope: the moment of `a/w` is
    `a/a/w/Adam`, that of `w` is `w/Adam`.
    """
    prefix = f"{scope}/"
    names = list(variables)
    plain = {name: name.removeprefix(prefix) for name in names}
    for name, inner in plain.items():
        of_variable, _, slot = inner.rpartition("/")
        if of_variable in plain:
            plain[name] = f"{of_variable.removeprefix(prefix)}/{slot}"
    return plain


def _restart_keras_names(graph: Any) -> None:
    """Lets Keras name the next layers as it names the first ones of a program.

    Keras counts the layers of a process, tf_keras those of a graph. What is public for it does more: Keras
    would clear the graph that is being built, tf_keras forget the names in all graphs.
    """
    keras: Any = sys.modules.get("keras.src.utils.naming")
    if keras is not None:
        keras.reset_uids()
    tf_keras: Any = sys.modules.get("tf_keras.src.backend")
    if tf_keras is not None:
        tf_keras.PER_GRAPH_OBJECT_NAME_UIDS.pop(graph, None)


@contextmanager
def _own_collections(graph: Any) -> Iterator[None]:
    """Empties the collections of a graph; afterwards they hold what they held and what has come since."""
    import tensorflow as tf

    held = {key: graph.get_collection(key) for key in graph.get_all_collection_keys()}
    for key in held:
        graph.get_collection_ref(key).clear()
    try:
        yield
    finally:
        for key in graph.get_all_collection_keys():
            since = graph.get_collection(key)
            # Of the global step (and of what TensorFlow keeps beside it) a graph has one.
            of_step = key.startswith(tf.compat.v1.GraphKeys.GLOBAL_STEP)
            graph.get_collection_ref(key)[:] = [*held.get(key, []), *([] if of_step else since)]
