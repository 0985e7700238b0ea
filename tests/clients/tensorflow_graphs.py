"""TensorFlow settings for tests of programs that run for a few steps."""

from __future__ import annotations

from typing import Any


def optimize_graphs(wanted: bool) -> None:
    """Enable or disable graph optimization in all TensorFlow sessions that this process creates from now on.

    Optimization takes a third of the CPU time of two training steps, and only pays off for thousands. Results
    differ only by rounding, which in 16 bits happens after other operations.

    Args:
        wanted: True for TensorFlow's default.
    """
    import tensorflow as tf
    from tensorflow.python.client.session import BaseSession

    own = getattr(BaseSession.__init__, "__wrapped__", BaseSession.__init__)

    def open_unoptimized(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        chosen = tf.compat.v1.ConfigProto()
        if config is not None:
            chosen.CopyFrom(config)
        chosen.graph_options.rewrite_options.disable_meta_optimizer = True
        own(self, target, graph, chosen)

    open_unoptimized.__wrapped__ = own  # type: ignore[attr-defined]
    BaseSession.__init__ = own if wanted else open_unoptimized
