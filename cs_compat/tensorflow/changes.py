"""Names that libraries have lost since the programs were written, put back when their modules are imported.

The list: all names that public programs of the time use, and that TensorFlow 2.21 with tf_keras lacks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from cs_toolkit.messages import Message


def _tensorflow(module: ModuleType) -> None:
    """`tf.estimator`, also of `tf.compat.v1`; `tensorflow.python.keras`; `inspect.getargspec`."""
    sys.modules[f"{module.__name__}.estimator"] = import_module("cs_compat.tensorflow.tf_estimator")
    compat = vars(module)["compat"]
    for home in (module, compat.v1, compat.v2):
        _estimator(home)
    inspect: Any = import_module("inspect")
    if not hasattr(inspect, "getargspec"):  # Python 3.11 has dropped it
        inspect.getargspec = _getargspec
    import_module("cs_compat.tensorflow.python_keras").install()


def _estimator(module: ModuleType) -> None:
    if not hasattr(module, "estimator"):
        setattr(module, "estimator", import_module("cs_compat.tensorflow.tf_estimator"))  # noqa: B010 - typed


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
    experimental = import_module("cs_compat.tensorflow.experimental_mixed_precision")
    vars(module)["experimental"] = experimental
    sys.modules[f"{module.__name__}.experimental"] = experimental


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
    """Positional arguments of convolutions as before an argument came between them."""
    for name, (position, default) in _ADDED.items():
        layer = vars(module).get(name)
        if layer is not None:
            layer.__init__ = _without(layer.__init__, position, default)


# Where `groups` (TensorFlow 2.3) and `dilation_rate` (2.4) came in before the activation; their defaults.
_ADDED: Mapping[str, tuple[int, Any]] = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D"), (6, 1)),
    "DepthwiseConv2D": (5, (1, 1)),
}


def _without(own: Callable[..., None], position: int, default: Any) -> Callable[..., None]:
    @wraps(own)
    def construct(self: Any, *arguments: Any, **keywords: Any) -> None:
        # What came in is a number or several, and the activation never is.
        if len(arguments) > position and _is_activation(arguments[position]):
            arguments = (*arguments[:position], default, *arguments[position:])
        own(self, *arguments, **keywords)

    return construct


def _is_activation(value: Any) -> bool:
    return value is None or isinstance(value, str) or callable(value)


def _assignable(own: property, slot: str) -> property:
    def read(self: Any) -> Any:
        return self.__dict__[slot] if slot in self.__dict__ else own.__get__(self)

    def write(self: Any, value: Any) -> None:
        self.__dict__[slot] = value

    return property(read, write, doc=own.__doc__)


def _json_format(module: ModuleType) -> None:
    """`google.protobuf.json_format` for the free-form messages that stand for those of the original stack."""
    functions = vars(module)
    own = {name: functions[name] for name in ("MessageToDict", "MessageToJson", "Parse", "ParseDict")}

    def as_dict(message: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(message, Message):
            return message.as_dict()
        return own["MessageToDict"](message, *arguments, **keywords)

    def as_json(message: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(message, Message):
            return json.dumps(message.as_dict(), sort_keys=True)
        return own["MessageToJson"](message, *arguments, **keywords)

    def parse(text: Any, message: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(message, Message):
            return parse_dict(json.loads(text), message)
        return own["Parse"](text, message, *arguments, **keywords)

    def parse_dict(fields: Any, message: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(message, Message):
            message.MergeFrom(Message(**fields))
            return message
        return own["ParseDict"](fields, message, *arguments, **keywords)

    changed: tuple[Callable[..., Any], ...] = (as_dict, as_json, parse, parse_dict)
    for name, function in zip(own, changed, strict=True):
        functions[name] = wraps(own[name])(function)


CHANGES: Mapping[str, Callable[[ModuleType], None]] = {
    "google.protobuf.json_format": _json_format,
    "tensorflow": _tensorflow,
    # By these names they are modules of their own, unless TensorFlow has imported Keras.
    "tensorflow.compat.v1": _estimator,
    "tensorflow.compat.v2": _estimator,
    "tensorflow.keras.mixed_precision": _mixed_precision,
    "tf_keras.api._v1.keras.mixed_precision": _mixed_precision,
    "tf_keras.api._v2.keras.mixed_precision": _mixed_precision,
    "tf_keras.src.engine.base_layer": _layer,
    "tf_keras.src.layers.convolutional.conv1d": _convolution,
    "tf_keras.src.layers.convolutional.conv2d": _convolution,
    "tf_keras.src.layers.convolutional.conv3d": _convolution,
    "tf_keras.src.layers.convolutional.depthwise_conv2d": _convolution,
}
"""What happens right after the import of a module, by its name."""
