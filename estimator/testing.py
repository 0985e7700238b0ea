"""TensorFlow settings for tests of programs that run for a few steps."""

from __future__ import annotations

from typing import Any


def optimise_graphs(wanted: bool) -> None:
    """Enable or disable graph optimization in all TensorFlow sessions that this process creates from now on.

    Optimization takes a third of the CPU time of two training steps, and only pays off for thousands. Results
    differ only by rounding, which in 16 bits happens after other operations.

    Args:
        wanted: True for TensorFlow's default.
    """
    from tensorflow.python.client.session import BaseSession

    BaseSession.__init__ = _plain(BaseSession.__init__) if wanted else _as_it_is(BaseSession.__init__)


def _as_it_is(plain: Any) -> Any:
    import tensorflow as tf

    def opened(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        chosen = tf.compat.v1.ConfigProto()
        if config is not None:
            chosen.CopyFrom(config)
        chosen.graph_options.rewrite_options.disable_meta_optimizer = True
        plain(self, target, graph, chosen)

    opened.__wrapped__ = plain  # type: ignore[attr-defined]
    return opened


def _plain(opened: Any) -> Any:
    return getattr(opened, "__wrapped__", opened)
