"""Sparse gradients of Keras 3 in a traced step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

_BACKEND = "keras.src.backend.tensorflow.numpy"


@contextmanager
def quotients_of_known_shape() -> Iterator[None]:
    """Within it, the quotient of a sparse gradient and a tensor has the rows of the gradient, in Keras 3.

    RMSprop, Adagrad, Adadelta and Adafactor divide the gradient of an embedding by the root of a sum of
    squares and an epsilon. Keras adds the rows in which the divisor has a zero or a NaN, as many as the data
    make. The root is above zero; a NaN in it comes of one in the same row of an earlier gradient, which has
    made the row of the weights NaN as well.
    """
    numpy: Any = sys.modules.get(_BACKEND)
    if numpy is None:
        yield
        return
    divide = numpy.divide

    def divide_rows(x1: Any, x2: Any) -> Any:
        if not isinstance(x1, tf.IndexedSlices) or not tf.is_tensor(x2) or not x2.shape.rank:
            return divide(x1, x2)
        if isinstance(x2, tf.IndexedSlices) or x2.shape != x1.shape:
            return divide(x1, x2)
        return tf.IndexedSlices(divide(x1.values, tf.gather(x2, x1.indices)), x1.indices, x1.dense_shape)

    numpy.divide = divide_rows
    try:
        yield
    finally:
        numpy.divide = divide
