"""A graph for input functions that are written for eager execution."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph


class EagerGraph(FuncGraph):  # type: ignore[misc]  # TensorFlow is untyped
    """A graph in which functions mean what they mean when they are called eagerly.

    In a graph of `tf.compat.v1`, `==` of two tensors compares the Python objects; in the graph of a function
    it compares values. Tensors that were made outside become constants, so that a session can run it.
    """

    def __init__(self) -> None:
        super().__init__("input_analyzer")

    def capture(self, tensor: Any, name: Any = None, shape: Any = None) -> Any:
        """The tensor of this graph that stands for one from outside.

        Raises:
            NotImplementedError: it is a variable or a table that was made outside of the input function.
        """
        if not isinstance(tensor, tf.__internal__.EagerTensor):
            return super().capture(tensor, name=name, shape=shape)
        if tensor.dtype in (tf.resource, tf.variant):
            raise NotImplementedError(
                "the input function uses a variable, table or dataset that was made outside of it; expected "
                "one that makes all that it uses: make it inside of the function"
            )
        with self.as_default():
            return tf.constant(tensor.numpy(), tensor.dtype)
