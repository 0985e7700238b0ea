"""Lets a step look as one that a compiler of PyTorch traces, and keeps Dynamo, that compiler, out of it.

Libraries ask `torch.compiler.is_compiling()` before they read values, as whether a mask hides anything, and
take a branch without reads where it says yes. That is what a step needs, so it says yes here.

PyTorch imports Dynamo to tell it which of its own functions it shall not compile, a second of CPU time in a
program that compiles nothing. Shape functions of `nn.Linear` and of softmax are among them. A function that
was called without Dynamo is not skipped by `torch.compile` later in the same process. It is also imported
by PyTorch's optimizers, when they are made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"

_SKIPPED = "__dynamo_disable"
"""Attribute in which `torch._compile` keeps a function as Dynamo skips it."""


class _Absent(ModuleType):
    """Stands for Dynamo as long as nobody asks it for more than to skip a function, or whether it runs."""

    def disable(self, function: Callable[..., Any], *arguments: object, **keywords: object) -> Any:
        """The function itself: nothing compiles it."""
        return function

    def is_compiling(self) -> bool:
        """Whether a compiler traces the program."""
        return torch.compiler.is_compiling()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # asked of all modules; the path is for submodules
            raise AttributeError(name)
        self.leave()
        return getattr(import_module(_NAME), name)

    def leave(self) -> None:
        """Whoever imports Dynamo from now on gets it."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]


@contextmanager
def without_dynamo() -> Iterator[None]:
    """PyTorch's own functions do not import Dynamo in the body; whoever uses it there gets it."""
    if _NAME in sys.modules:
        yield
        return
    absent = sys.modules[_NAME] = _Absent(_NAME)
    try:
        yield
    finally:
        absent.leave()


def keep_out_of_optimizers() -> None:
    """Let optimizers of PyTorch not import Dynamo; once a program has, they ask it to skip their methods."""
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        function = getattr(vars(torch.optim.Optimizer)[name], "__wrapped__", None)
        if function is not None and not hasattr(function, _SKIPPED):
            setattr(function, _SKIPPED, _skipped_late(function))


def _skipped_late(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what PyTorch calls instead of a function; it asks Dynamo to skip that once Dynamo is loaded."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        loaded = sys.modules.get(_NAME)
        if loaded is None or isinstance(loaded, _Absent):
            return function(*arguments, **keywords)
        skipped = loaded.disable(function, wrapping=False)
        setattr(function, _SKIPPED, skipped)
        return skipped(*arguments, **keywords)

    return call


@contextmanager
def appearing_compiled() -> Iterator[None]:
    """Answers yes to whoever asks whether a compiler traces the body, and compiles nothing there.

    Functions that `torch.compile` has made before run as they were written. `torch.compiler.is_exporting()`
    stays False: libraries answer it with slower code for runtimes that lack operations, such as loops instead
    of `solve_triangular`. So does `torch.jit.is_tracing()`, which makes sizes tensors.
    """
    replaced = {"_is_compiling_flag": True, "is_dynamo_compiling": _yes}
    originals = {name: getattr(torch.compiler, name) for name in replaced}, torch.compile
    with ExitStack() as entered:
        if _NAME in sys.modules:  # without it nothing was compiled
            entered.enter_context(torch.compiler.set_stance("force_eager"))
        entered.enter_context(without_dynamo())
        try:
            vars(torch.compiler).update(replaced)
            vars(torch)["compile"] = _as_written
            yield
        finally:
            kept, vars(torch)["compile"] = originals
            vars(torch.compiler).update(kept)


def _yes() -> bool:
    return True


def _as_written(model: Any = None, **_: object) -> Any:
    """`torch.compile` in a step: what is compiled is the step."""
    return _as_written if model is None else model


_DTENSOR = "torch.distributed.tensor"


def keep_dtensor_out() -> None:
    """Let PyTorch keep a class that stands for DTensor, and asks DTensor once a program has imported it."""
    if _DTENSOR in sys.modules:
        return
    module: Any = ModuleType(_DTENSOR)
    module.DTensor = _LateDTensor
    sys.modules[_DTENSOR] = module
    try:
        torch.Tensor._make_wrapper_subclass(_Probe, ()).detach()
    finally:
        del sys.modules[_DTENSOR]


class _Late(type):
    """The class of DTensor's stand-in: whatever is asked of the stand-in is answered by DTensor."""

    def __instancecheck__(cls, tensor: object) -> bool:
        real = getattr(sys.modules.get(_DTENSOR), "DTensor", cls)  # not there yet while the module is loaded
        return real is not cls and isinstance(tensor, real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(sys.modules[_DTENSOR].DTensor, name)


class _LateDTensor(metaclass=_Late):
    pass


class _Probe(torch.Tensor):
    """A subclass with an operation, the first in the process, that PyTorch takes through Python."""

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0]
