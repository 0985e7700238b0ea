"""Tiny models of timm: a variant of each family of its registry, with few layers, small widths and images.

A family is a module of timm and the first word of a name in it, without digits: the module `resnet` has
`resnet`, `resnext`, `seresnet` and others. Variants of a family differ in sizes, which a tiny model lacks.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.architecture import (
    BATCH_SIZE,
    MAX_PARAMETERS,
    SEED,
    STEPS,
    SkippedError,
    Workload,
    one_line,
)
from benchmarks.zoo.tiny import Shrinking, shrink
from benchmarks.zoo.torch_outputs import without_randomness, without_ties

CLASSES = 10
IMAGES = (64, 128, 32, 256)
"""Sizes that are tried in turn, in pixels."""
_SMALL = re.compile(
    r"(^|_)(test|atto|femto|pico|nano|micro|xxs|xxt|zepto|mini|tiny|t|ti|xs|n|s|small|050|0_5|tn|extra|xxsmall|xsmall)"
    r"(\d*)(_|$)"
)
_FIRST_WORD = re.compile(r"^[a-z]+")


def preload() -> None:
    """Imports what all models need, before processes are forked."""
    _timm()


def names() -> list[str]:
    """A variant of each family, by the names of timm."""
    timm = _timm()
    found: dict[tuple[str, str], list[str]] = {}
    for name in timm.list_models():
        module = timm.models._registry._model_to_module[name]
        word = _FIRST_WORD.match(name)
        found.setdefault((module, word.group() if word else name), []).append(name)
    return sorted(min(variants, key=_size) for variants in found.values())


def _size(name: str) -> tuple[bool, int, str]:
    """Small variants first, by what their names say."""
    numbers = [int(digits) for digits in re.findall(r"\d+", name)]
    return not _SMALL.search(name), sum(numbers), name


def workload(name: str) -> Workload:
    """A tiny model of a family, with batches of images.

    Raises:
        SkippedError: it cannot be made small, or does not train on this CPU.
    """
    failed = ""
    for smaller in (True, False):
        for size in IMAGES:
            try:
                return _workload_of(name, size, smaller)
            except SkippedError:
                raise
            except Exception as error:
                failed = failed or one_line(error)
    raise SkippedError(f"it does not run on this CPU: {failed}")


def _workload_of(name: str, size: int, smaller: bool) -> Workload:
    timm = _timm()
    with _shrunk(timm, size) if smaller else _unchanged():
        with torch.device("meta"):
            parameters = sum(p.numel() for p in _make(timm, name, size).parameters())
        if parameters > MAX_PARAMETERS:
            if smaller:
                raise ValueError("large")
            raise SkippedError(f"{parameters:,} parameters in its smallest variant")
        torch.manual_seed(SEED)
        model = _make(timm, name, size)
    without_randomness(model)
    without_ties(model)
    model.train()
    channels = model.pretrained_cfg.get("input_size", (3,))[0]
    batches = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(SEED + step)
        batches.append(
            {
                "x": torch.randn(BATCH_SIZE, channels, size, size, generator=generator),
                "labels": torch.randint(0, CLASSES, (BATCH_SIZE,), generator=generator),
            }
        )
    cross_entropy(model, batches[0]).backward()
    model.zero_grad(set_to_none=True)
    return Workload(model, batches, cross_entropy, f"{type(model).__name__}, cross entropy, {size} x {size}")


def _make(timm: Any, name: str, size: int) -> nn.Module:
    try:
        model: nn.Module = timm.create_model(name, num_classes=CLASSES, img_size=size)
    except TypeError:
        model = timm.create_model(name, num_classes=CLASSES)
    return model


def cross_entropy(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of a classifier; where a model has several heads the mean of their losses."""
    outputs = model(batch["x"])
    heads = outputs if isinstance(outputs, list | tuple) else [outputs]
    losses = [functional.cross_entropy(logits, batch["labels"]) for logits in heads]
    return sum(losses[1:], losses[0]) / len(losses)


@contextmanager
def _unchanged() -> Iterator[None]:
    yield


@contextmanager
def _shrunk(timm: Any, size: int) -> Iterator[None]:
    """Lets timm build models with smaller arguments.

    Every entry point ends in `build_model_with_cfg`, which gets the class and its arguments; that is where
    they shrink, so that one rule serves all modules.
    """
    whole = timm.models._builder.build_model_with_cfg

    def build(model_class: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
        parameters = inspect.signature(model_class.__init__).parameters
        fields = {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        fields |= {name: value for name, value in kwargs.items() if name in parameters}
        for name in ("img_size", "num_classes", "in_chans", "patch_size"):
            fields.pop(name, None)
        model: nn.Module = whole(model_class, *args, **{**kwargs, **shrink(fields, Shrinking(fields))})
        return model

    users = [m for m in list(sys.modules.values()) if getattr(m, "build_model_with_cfg", None) is whole]
    for user in users:
        user.build_model_with_cfg = build
    try:
        yield
    finally:
        for user in users:
            user.build_model_with_cfg = whole


def _timm() -> Any:
    """The library, which imports torchvision for its input pipelines; models only ask for one class of it."""
    if "timm" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return importlib.import_module("timm")
    finder = _WithoutTorchvision()
    sys.meta_path.append(finder)
    try:
        return importlib.import_module("timm")
    finally:  # transformers checks for torchvision
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


class _WithoutTorchvision:
    """Makes modules of torchvision's names, whose attributes are classes without instances."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The specification of such a module; None for other names."""
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> ModuleType:
        """A module whose attributes are made when they are asked for."""
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


class _Names(type):
    """A class whose attributes are their names, as members of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Absent(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _Names(name, (), {"__module__": self.__name__})
        setattr(self, name, found)
        return found
