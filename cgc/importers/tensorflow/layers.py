"""Which layer an operation of TensorFlow belongs to, from its name scopes.

TensorFlow and Keras open a scope for each layer, and further ones inside of it for what the layer is made of.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby
from typing import Any

from cgc.cirh.base import LayerPath
from cgc.importers.tensorflow.source import forward_op

_TO_GRADIENTS = re.compile(r"^(.*/)?(gradients(_\d+)?|gradient_tape)/")
"""What stands before the names of all that `tf.gradients` and `tf.GradientTape` make."""

_INNER = frozenset(
    {
        *("moments", "batchnorm", "Tensordot", "random_uniform", "xentropy"),
        *("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"),
    }
)
"""Scopes inside a layer."""


def layer_of(op: Any, scope: str = "") -> LayerPath:
    """The layer of an operation; of one of a gradient that of its forward operation.

    "ln/batchnorm/sub" and "train/gradients/ln/moments/mean_grad/Mul" are of ("ln",). A scope that stands
    twice in a row counts once: Keras opens that of a layer again for its call.

    Args:
        op: the tf.Operation.
        scope: what names begin with in a function that is imported in place, see `forward_name`.
    """
    return _layer_of_scopes((scope + forward_name(op)).rpartition("/")[0])


@lru_cache(maxsize=4096)
def _layer_of_scopes(joined: str) -> LayerPath:
    scopes = joined.split("/") if joined else []
    while scopes and (scopes[-1].endswith("_grad") or scopes[-1] in _INNER):
        scopes.pop()
    return tuple(name for name, _ in groupby(scopes))


def forward_name(op: Any) -> str:
    """The name of the forward operation of one of a gradient, of all others their own.

    The gradient of a loop has a name of its own: it turns from the last turn to the first, so that its turns
    are no turns of the loop.
    """
    forward = None if op.type.endswith("While") else forward_op(op)
    name = str((forward or op).name)
    return _TO_GRADIENTS.sub("", name) if "gradient" in name else name
