"""Tiny models of keras.applications: every class, with fewer and narrower layers and small images."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.zoo.architecture import (
    BATCH_SIZE,
    MAX_PARAMETERS,
    SEED,
    STEPS,
    SkippedError,
    Workload,
    one_line,
)
from benchmarks.zoo.keras_training import compile_model

CLASSES = 10
IMAGES = (64, 75, 96, 128)

Change = Callable[[Any], Any]


def _value(new: Any) -> Change:
    return lambda old: new


def _narrow(filters: int) -> int:
    return max(8, filters // 8)


SMALLER: dict[str, dict[str, dict[str, Change]]] = {
    "convnext": {"ConvNeXt": {"depths": _value([1, 1, 1, 1]), "projection_dims": _value([16, 32, 48, 64])}},
    "densenet": {"DenseNet": {"blocks": _value([2, 2, 2, 2])}},
    "efficientnet": {"EfficientNet": {"width_coefficient": _value(0.25), "depth_coefficient": _value(0.25)}},
    "efficientnet_v2": {
        "EfficientNetV2": {"width_coefficient": _value(0.25), "depth_coefficient": _value(0.2)}
    },
    "nasnet": {"NASNet": {"penultimate_filters": _value(96), "num_blocks": _value(1)}},
    "resnet": {
        "stack_residual_blocks_v1": {"filters": _narrow, "blocks": _value(2)},
        "stack_residual_blocks_v2": {"filters": _narrow, "blocks": _value(2)},
    },
}
"""Functions of modules of `keras.src.applications`, and what becomes of their arguments."""

ALPHA = {"MobileNet": 0.25, "MobileNetV2": 0.35, "MobileNetV3Small": 0.75, "MobileNetV3Large": 0.75}
"""Width of classes that take it as an argument."""


def preload() -> None:
    """Imports what all models need, before processes are forked."""
    importlib.import_module("keras")


def names() -> list[str]:
    """All classes of keras.applications."""
    import keras

    return [name for name in dir(keras.applications) if name[0].isupper()]


def workload(name: str) -> Workload:
    """A tiny model of a class, compiled, with batches of images.

    Raises:
        SkippedError: it cannot be made small.
    """
    failed = ""
    for size in IMAGES:
        try:
            model = _model(name, size)
        except Exception as error:
            failed = one_line(error)
            continue
        if model.count_params() > MAX_PARAMETERS:
            raise SkippedError(f"{model.count_params():,} parameters")
        return Workload(model, _batches(size), None, f"{name}, cross entropy, {size} x {size}")
    raise SkippedError(f"no image size of {IMAGES} fits: {failed}")


def _model(name: str, size: int) -> Any:
    import keras

    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(SEED)
    arguments: dict[str, Any] = {"alpha": ALPHA[name]} if name in ALPHA else {}
    with _smaller():
        body = getattr(keras.applications, name)(
            include_top=False, weights=None, input_shape=(size, size, 3), pooling="avg", **arguments
        )
    for layer in body.layers:
        for rate in ("rate", "drop_path_rate"):
            if isinstance(getattr(layer, rate, None), float):
                setattr(layer, rate, 0.0)
    model = keras.Model(body.input, keras.layers.Dense(CLASSES)(body.output))
    compile_model(model)
    return model


@contextmanager
def _smaller() -> Iterator[None]:
    """Lets keras.applications build models with smaller arguments."""
    with ExitStack() as patches:
        for module_name, functions in SMALLER.items():
            module = importlib.import_module(f"keras.src.applications.{module_name}")
            for function, changes in functions.items():
                changed = _apply_changes(getattr(module, function), changes)
                patches.enter_context(mock.patch.object(module, function, changed))
        yield


def _apply_changes(function: Callable[..., Any], changes: dict[str, Change]) -> Callable[..., Any]:
    import inspect

    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, change in changes.items():
            if name in bound.arguments:
                bound.arguments[name] = change(bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return call


def _batches(size: int) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    generator = np.random.default_rng(SEED)
    return [
        (
            generator.normal(size=(BATCH_SIZE, size, size, 3)).astype(np.float32),
            generator.integers(0, CLASSES, BATCH_SIZE).astype(np.int32),
        )
        for _ in range(STEPS)
    ]
