"""TensorFlow for tests of programs that run for some steps."""

from __future__ import annotations

from typing import Any


def optimise_graphs(wanted: bool) -> None:
    """Whether sessions of TensorFlow optimise their graphs in this process from here on.

    That is a third of the CPU time of a training of two steps, and pays in one of thousands. Numbers are
    equal but for rounding: in 16 bits that is after other operations.

    Args:
        wanted: True for what TensorFlow does by itself.
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
