"""Names that libraries have removed since programs were written, restored when their modules are imported.

These are all names that public programs of the time use and that TensorFlow 2.21 with tf_keras lacks.
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


def _restore_tensorflow_names(module: ModuleType) -> None:
    """Restore `tf.estimator`, also in `tf.compat.v1`, `tensorflow.python.keras`, and `inspect.getargspec`."""
    sys.modules[f"{module.__name__}.estimator"] = import_module("cs_compat.tensorflow.tf_estimator")
    compat = vars(module)["compat"]
    for home in (module, compat.v1, compat.v2):
        _restore_estimator(home)
    inspect: Any = import_module("inspect")
    if not hasattr(inspect, "getargspec"):  # removed in Python 3.11
        inspect.getargspec = _getargspec
    import_module("cs_compat.tensorflow.python_keras").install()


def _restore_estimator(module: ModuleType) -> None:
    if not hasattr(module, "estimator"):
        setattr(module, "estimator", import_module("cs_compat.tensorflow.tf_estimator"))  # noqa: B010 - typed


def _getargspec(function: Callable[..., Any]) -> Any:
    """Return the first four fields of `inspect.getfullargspec`, like the removed function."""
    from inspect import getfullargspec

    full = getfullargspec(function)
    return ArgSpec(full.args, full.varargs, full.varkw, full.defaults)


class ArgSpec(NamedTuple):
    """The result of the removed `inspect.getargspec`."""

    args: list[str]
    varargs: str | None
    keywords: str | None
    defaults: tuple[Any, ...] | None


def _restore_mixed_precision(module: ModuleType) -> None:
    """Restore `tf.keras.mixed_precision.experimental` in Keras 2."""
    if not vars(module)["LossScaleOptimizer"].__module__.startswith("tf_keras."):
        return
    experimental = import_module("cs_compat.tensorflow.experimental_mixed_precision")
    vars(module)["experimental"] = experimental
    sys.modules[f"{module.__name__}.experimental"] = experimental


def _make_dtypes_assignable(module: ModuleType) -> None:
    """Allow assignment to `dtype_policy`, `compute_dtype` and `variable_dtype` of a Keras 2 layer.

    They were plain attributes before they became properties. An assigned policy becomes that of the layer. As
    before, the two types do not change the layer: the program only reads them again.
    """
    layer = vars(module)["Layer"]
    policy = layer.dtype_policy
    layer.dtype_policy = property(policy.fget, lambda self, value: self._set_dtype_policy(value))
    for name in ("compute_dtype", "variable_dtype"):
        setattr(layer, name, _make_assignable(getattr(layer, name), f"_assigned_{name}"))


def _restore_argument_order(module: ModuleType) -> None:
    """Accept positional arguments of convolutions in their order before an argument was added."""
    for name, (position, default) in _ADDED.items():
        layer = vars(module).get(name)
        if layer is not None:
            layer.__init__ = _insert_default(layer.__init__, position, default)


# Position and default of `groups` (added in TensorFlow 2.3) or `dilation_rate` (2.4), before the activation.
_ADDED: Mapping[str, tuple[int, Any]] = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D"), (6, 1)),
    "DepthwiseConv2D": (5, (1, 1)),
}


def _insert_default(own: Callable[..., None], position: int, default: Any) -> Callable[..., None]:
    @wraps(own)
    def construct(self: Any, *arguments: Any, **keywords: Any) -> None:
        # The added argument is one or several numbers, which an activation never is.
        if len(arguments) > position and _is_activation(arguments[position]):
            arguments = (*arguments[:position], default, *arguments[position:])
        own(self, *arguments, **keywords)

    return construct


def _is_activation(value: Any) -> bool:
    return value is None or isinstance(value, str) or callable(value)


def _make_assignable(own: property, slot: str) -> property:
    def read(self: Any) -> Any:
        return self.__dict__[slot] if slot in self.__dict__ else own.__get__(self)

    def write(self: Any, value: Any) -> None:
        self.__dict__[slot] = value

    return property(read, write, doc=own.__doc__)


def _support_messages(module: ModuleType) -> None:
    """Let `google.protobuf.json_format` convert the free-form messages that replace those of the original."""
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
    "google.protobuf.json_format": _support_messages,
    "tensorflow": _restore_tensorflow_names,
    # Under these names they are separate modules, unless TensorFlow has imported Keras.
    "tensorflow.compat.v1": _restore_estimator,
    "tensorflow.compat.v2": _restore_estimator,
    "tensorflow.keras.mixed_precision": _restore_mixed_precision,
    "tf_keras.api._v1.keras.mixed_precision": _restore_mixed_precision,
    "tf_keras.api._v2.keras.mixed_precision": _restore_mixed_precision,
    "tf_keras.src.engine.base_layer": _make_dtypes_assignable,
    "tf_keras.src.layers.convolutional.conv1d": _restore_argument_order,
    "tf_keras.src.layers.convolutional.conv2d": _restore_argument_order,
    "tf_keras.src.layers.convolutional.conv3d": _restore_argument_order,
    "tf_keras.src.layers.convolutional.depthwise_conv2d": _restore_argument_order,
}
"""Functions to run right after the import of a module, by its name."""
