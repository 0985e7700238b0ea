"""Annotations of operations for the original's compiler, and names of operations in reports.

Annotations choose kernels, recomputed regions and names in the original's intermediate code. The compiler of
this toolkit decides those itself, so annotations have no effect, which is logged once for each kind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from cstorch.compatibility import log_unused
from cstorch.program import Program
from cstorch.tracing.places import DEBUG_NAME
from cstorch.tracing.recorder import current_recording

log = logging.getLogger("cstorch")

Function = TypeVar("Function", bound=Callable[..., Any])


class AnnotationMode(ContextDecorator):
    """Annotates the operations of a `with` block, or of a function that it decorates.

    Subclasses define `get_attribute`, which gives an attribute from a configuration.

    Args:
        config: Selects the annotated operations.
    """

    class Attribute(NamedTuple):
        """An attribute of operations."""

        name: str
        value: Any

    @dataclass
    class Config:
        """Which operations are annotated: those of the forward pass, and of the backward pass."""

        enable_fwd: bool
        enable_bwd: bool

    def __init__(self, config: Config) -> None:
        self._config = config
        self._active: list[AnnotationMode.Attribute] = []

    @property
    def config(self) -> Config:
        """The selection of annotated operations."""
        return self._config

    def get_attribute(self, config: Config, is_backward: bool = False) -> Attribute:
        """Return the attribute for a configuration; defined by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} has no get_attribute(config, is_backward)")

    def enable_annotation(
        self, attr: Attribute, is_backward: bool, enable_fwd: bool, enable_bwd: bool
    ) -> None:
        """Annotate the following operations if their pass is enabled."""
        if enable_bwd if is_backward else enable_fwd:
            _log_without_effect(attr.name)
            self._active.append(attr)

    def disable_annotation(self, attr: Attribute) -> None:
        """Stop annotating the following operations."""
        if attr in self._active:
            self._active.remove(attr)

    def hook_tensor_grad_fn(self, arg: torch.Tensor, grad_fns: set[Any]) -> None:
        """Collect the backward function of a tensor."""
        if arg.grad_fn is not None:
            grad_fns.add(arg.grad_fn)

    def enable_bwd_annotation(self, args: Any = (), kwargs: Any = None) -> None:
        """Annotate the operations of the backward pass of these arguments."""
        if self.config.enable_bwd:
            _log_without_effect(self.get_attribute(self.config, True).name)

    def __enter__(self) -> AnnotationMode:
        if self.config.enable_fwd:
            self.enable_annotation(self.get_attribute(self.config, False), False, True, False)
        if self.config.enable_bwd:
            self.enable_bwd_annotation()
        return self

    def __exit__(self, *error: object) -> None:
        for attribute in list(self._active):
            self.disable_annotation(attribute)


def _log_without_effect(name: str) -> None:
    message = "the annotation %s for the original's compiler has no effect here"
    Program.current().log_once(log, logging.INFO, message, name)


def annotate(annotation_mode: AnnotationMode) -> Callable[[Function], Function]:
    """Return a decorator that annotates the operations of a function."""
    return annotation_mode


def create_annotation(
    annotation_config: type[AnnotationMode.Config],
    get_attribute_fn: Callable[[Any, bool], AnnotationMode.Attribute],
    **kwargs: Any,
) -> Callable[[Function], Function]:
    """Return a decorator that annotates the operations of a function.

    Args:
        annotation_config: Class of the configuration.
        get_attribute_fn: Returns the attribute for a configuration and a pass (True: backward).
        **kwargs: Arguments of the configuration.
    """

    class Mode(AnnotationMode):
        """Annotates with the attributes of `get_attribute_fn`."""

        def get_attribute(
            self, config: AnnotationMode.Config, is_backward: bool = False
        ) -> AnnotationMode.Attribute:
            return get_attribute_fn(config, is_backward)

    return annotate(Mode(annotation_config(**kwargs)))


@dataclass
class _Named(AnnotationMode.Config):
    name: Any = None


def device_annotation(
    device: Any, enable_fwd: bool = True, enable_bwd: bool = True
) -> Callable[[Function], Function]:
    """Return a decorator that annotates operations with a device of the original's mesh."""
    return _annotate("device", device, enable_fwd, enable_bwd)


def kernel_annotater(kernel: str | None = None) -> Callable[[Function], Function]:
    """Return a decorator that annotates operations with a kernel of the original's compiler."""
    return _identity if kernel is None else _annotate("kernel", kernel)


def groups_annotater(num_kv_groups: int | None = None) -> Callable[[Function], Function]:
    """Return a decorator that annotates operations with the groups of keys and values of an attention."""
    return _identity if num_kv_groups is None else _annotate("num_kv_groups", num_kv_groups)


def _annotate(
    attribute: str, value: Any, enable_fwd: bool = True, enable_bwd: bool = True
) -> Callable[[Function], Function]:
    return create_annotation(
        _Named,
        lambda config, is_backward: AnnotationMode.Attribute(attribute, config.name),
        name=value,
        enable_fwd=enable_fwd,
        enable_bwd=enable_bwd,
    )


def _identity(function: Function) -> Function:
    return function


@contextmanager
def name_scope(name: str, raw: bool = False) -> Iterator[None]:
    """Name the operations of the body in reports and errors, below the running module.

    Args:
        name: The name.
        raw: Without effect: names are always used as they are.
    """
    recording = current_recording()
    if recording is None:
        yield
        return
    with recording.places.inside(name):
        yield


def add_debug_name(module: nn.Module, root_name: str | None = None) -> None:
    """Name the operations of a module that is part of no compiled model, such as a loss.

    Args:
        module: The module.
        root_name: Name of the module, with which the names of its submodules begin.
    """
    for path, part in module.named_modules(prefix=root_name or ""):
        object.__setattr__(part, DEBUG_NAME, path)


def get_debug_name(module: nn.Module) -> str:
    """Return the name that `add_debug_name` gave a module, or else a name from its class and identity."""
    name: str | None = getattr(module, DEBUG_NAME, None)
    return f"{type(module).__name__}_{id(module):x}" if name is None else name


def set_debug_scope(name: str | None) -> None:
    """Name the following operations of the step, until another name or None is set."""
    recording = current_recording()
    if recording is not None:
        recording.places.set_scope(name)


@contextmanager
def pol(
    level: int | None = None,
    bwd_level: int | None = None,
    enable_fwd: bool = True,
    enable_bwd: bool = True,
) -> Iterator[None]:
    """Set the original's precision optimization level, 0 to 2; without effect here.

    It is a context, and a decorator of functions and modules: `pol(bwd_level=0)(self.head)(x)`.

    Args:
        level: The level.
        bwd_level: Level of the backward pass; None for `level`.
        enable_fwd: Apply it to the forward pass.
        enable_bwd: Apply it to the backward pass.
    """
    log_unused("pol()", {"level": level, "bwd_level": bwd_level})
    program = Program.current()
    before = program.precision_level
    if level is not None and enable_fwd:
        program.precision_level = level
    try:
        yield
    finally:
        program.precision_level = before


def current_pol() -> int:
    """The level of `pol` around the call; 0 outside of one."""
    return Program.current().precision_level


def set_attribute(tensor: torch.Tensor, name: str, value: Any) -> None:
    """Annotate the operation that computes a tensor for the original's compiler; without effect here."""
    log_unused("cerebras_pytorch_lib.set_attribute()", {name: value or True})


def is_initialized() -> bool:
    """Return True: there is nothing to initialize."""
    return True


cerebras_pytorch_lib = SimpleNamespace(set_attribute=set_attribute, is_initialized=is_initialized)
