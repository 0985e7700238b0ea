"""Which layer an operation of TensorFlow belongs to, from its name scopes.

TensorFlow and Keras open a scope for each layer, and further ones inside of it for what the layer is made of.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from cgc.cirh.base import LayerPath
from cgc.importers.tensorflow.source import forward_op

_GRADIENTS = re.compile(r"gradients(_\d+)?|gradient_tape")
"""Scopes around all that `tf.gradients` and `tf.GradientTape` make."""

_INNER = frozenset(
    {
        *("moments", "batchnorm", "Tensordot", "random_uniform", "xentropy"),
        *("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"),
    }
)
"""Scopes inside a layer."""


def layer_of(op: Any, scope: str = "") -> LayerPath:
    """The layer of an operation; of one of a gradient that of its forward operation.

    "ln/batchnorm/sub", "gradients/ln/moments/mean_grad/Mul" and "gradient_tape/ln/mul/Mul" are of ("ln",).

    Args:
        op: the tf.Operation.
        scope: what the names of a function's operations begin with where it is imported in place.
    """
    return layer_of_name(scope + str((forward_op(op) or op).name))


def layer_of_name(name: str) -> LayerPath:
    """The layer that the name of an operation tells.

    A scope that stands twice in a row counts once: Keras opens that of a layer again for its call.
    """
    scopes = [scope for scope in name.split("/")[:-1] if not _GRADIENTS.fullmatch(scope)]
    while scopes and (scopes[-1].endswith("_grad") or scopes[-1] in _INNER):
        scopes.pop()
    return tuple(scope for scope, _ in groupby(scopes))
