"""Names that TensorFlow has lost since the programs were written, put back when their modules are imported.

The list: all names that public programs of the time use, and that TensorFlow 2.21 with tf_keras lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple


def _tensorflow(module: ModuleType) -> None:
    """`tf.estimator`, also of `tf.compat.v1`; `inspect.getargspec`, which Python 3.11 has dropped."""
    estimator = import_module("csrun.flavours.tensorflow.tf_estimator")
    sys.modules[f"{module.__name__}.estimator"] = estimator
    compat = vars(module)["compat"]
    for home in (module, compat.v1, compat.v2):
        if not hasattr(home, "estimator"):
            setattr(home, "estimator", estimator)  # noqa: B010 - no attribute that a type checker knows
    inspect: Any = import_module("inspect")
    if not hasattr(inspect, "getargspec"):
        inspect.getargspec = _getargspec


def _getargspec(function: Callable[..., Any]) -> Any:
    """The first four fields of `inspect.getfullargspec`, as the removed function returned them."""
    from inspect import getfullargspec

    full = getfullargspec(function)
    return ArgSpec(full.args, full.varargs, full.varkw, full.defaults)


class ArgSpec(NamedTuple):
    """The result of the removed `inspect.getargspec`."""

    args: list[str]
    varargs: str | None
    keywords: str | None
    defaults: tuple[Any, ...] | None


def _mixed_precision(module: ModuleType) -> None:
    """`tf.keras.mixed_precision.experimental`, of Keras 2 alone."""
    if not vars(module)["LossScaleOptimizer"].__module__.startswith("tf_keras."):
        return
    experimental = import_module("csrun.flavours.tensorflow.experimental_mixed_precision")
    vars(module)["experimental"] = experimental
    sys.modules[f"{module.__name__}.experimental"] = experimental


def _tensorflow_mixed_precision(module: ModuleType) -> None:
    """`tensorflow.python.keras.mixed_precision.experimental.loss_scale_optimizer`."""
    experimental = ModuleType(f"{module.__name__}.experimental", _tensorflow_mixed_precision.__doc__)
    experimental.__path__ = []
    for name in ("loss_scale_optimizer", "loss_scale", "policy"):
        part = import_module(f"{module.__name__}.{name}")
        vars(experimental)[name] = part
        sys.modules[f"{experimental.__name__}.{name}"] = part
    vars(module)["experimental"] = experimental
    sys.modules[experimental.__name__] = experimental


def _layer(module: ModuleType) -> None:
    """Assignment to `dtype_policy`, `compute_dtype` and `variable_dtype` of a Keras 2 layer.

    They were plain attributes before they became properties. The policy assigned becomes the layer's; the two
    types are what the program reads again, and change nothing in the layer, as then.
    """
    layer = vars(module)["Layer"]
    policy = layer.dtype_policy
    layer.dtype_policy = property(policy.fget, lambda self, value: self._set_dtype_policy(value))
    for name in ("compute_dtype", "variable_dtype"):
        setattr(layer, name, _assignable(getattr(layer, name), f"_assigned_{name}"))


def _convolution(module: ModuleType) -> None:
    """Positional arguments of convolutions as before TensorFlow 2.3, when `groups` came between."""
    for name in ("Conv1D", "Conv2D", "Conv3D"):
        layer = vars(module).get(name)
        if layer is not None:
            layer.__init__ = _without_groups(layer.__init__)


_GROUPS_POSITION = 6
"""filters, kernel_size, strides, padding, data_format, dilation_rate, groups, activation, ..."""


def _without_groups(own: Callable[..., None]) -> Callable[..., None]:
    @wraps(own)
    def construct(self: Any, *arguments: Any, **keywords: Any) -> None:
        # `groups` is a whole number, and what used to be there, the activation, never is.
        if len(arguments) > _GROUPS_POSITION and not isinstance(arguments[_GROUPS_POSITION], int):
            arguments = (*arguments[:_GROUPS_POSITION], 1, *arguments[_GROUPS_POSITION:])
        own(self, *arguments, **keywords)

    return construct


def _assignable(own: property, slot: str) -> property:
    def read(self: Any) -> Any:
        return self.__dict__[slot] if slot in self.__dict__ else own.__get__(self)

    def write(self: Any, value: Any) -> None:
        self.__dict__[slot] = value

    return property(read, write, doc=own.__doc__)


CHANGES: Mapping[str, Callable[[ModuleType], None]] = {
    "tensorflow": _tensorflow,
    "tensorflow.keras.mixed_precision": _mixed_precision,
    "tensorflow.python.keras.mixed_precision": _tensorflow_mixed_precision,
    "tf_keras.api._v1.keras.mixed_precision": _mixed_precision,
    "tf_keras.api._v2.keras.mixed_precision": _mixed_precision,
    "tf_keras.src.engine.base_layer": _layer,
    "tf_keras.src.layers.convolutional.conv1d": _convolution,
    "tf_keras.src.layers.convolutional.conv2d": _convolution,
    "tf_keras.src.layers.convolutional.conv3d": _convolution,
}
"""What happens right after the import of a module, by its name."""
