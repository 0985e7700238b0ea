"""TensorFlow for tests of programs that run for some steps."""

from __future__ import annotations

from typing import Any


def run_graphs_as_they_are() -> None:
    """From here on TensorFlow optimises no graph in this process, of sessions and of eager functions.

    That is a third of the CPU time of a training of two steps, and pays in one of thousands. Numbers are
    equal but for rounding.
    """
    import tensorflow as tf
    from tensorflow.python.client.session import BaseSession

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    plain = BaseSession.__init__

    def opened(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        chosen = tf.compat.v1.ConfigProto()
        if config is not None:
            chosen.CopyFrom(config)
        chosen.graph_options.rewrite_options.disable_meta_optimizer = True
        plain(self, target, graph, chosen)

    BaseSession.__init__ = opened
