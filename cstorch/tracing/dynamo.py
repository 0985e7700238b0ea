"""Keeps Dynamo and DTensor, which are slow to import, out of programs that do not use them.

A step also reports that a compiler of PyTorch traces it: libraries ask `torch.compiler.is_compiling()` before
they read values, such as whether a mask hides anything, and take a branch without reads if it returns True.

PyTorch imports Dynamo to mark its own functions that are not to be compiled, shape functions of `nn.Linear`
and of softmax among them, and when an optimizer is made: a second of CPU time in a program that compiles
nothing. A function that was called without Dynamo is not skipped by `torch.compile` later in the process.

At the first operation on a tensor of any subclass PyTorch imports `torch.distributed.tensor`, and SymPy with
it: up to 1.4 s of CPU time in every task of a job. It keeps the class that it finds there, and asks it about
every tensor of a subclass from then on.
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

_DYNAMO = "torch._dynamo"

_SKIPPED = "__dynamo_disable"
"""Attribute in which `torch._compile` keeps the version of a function that Dynamo skips."""

_DTENSOR = "torch.distributed.tensor"


class _DynamoPlaceholder(ModuleType):
    """A placeholder for Dynamo until a program asks for more than to skip a function, or whether it runs."""

    def disable(self, function: Callable[..., Any], *arguments: object, **keywords: object) -> Any:
        """Return the function itself: nothing compiles it."""
        return function

    def is_compiling(self) -> bool:
        """Return True if a compiler traces the program."""
        return torch.compiler.is_compiling()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # Python asks all modules; the path finds submodules
            raise AttributeError(name)
        self.leave()
        return getattr(import_module(_DYNAMO), name)

    def leave(self) -> None:
        """Remove the placeholder: imports of Dynamo from now on get Dynamo."""
        if sys.modules.get(_DYNAMO) is self:
            del sys.modules[_DYNAMO]


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Keep PyTorch's own functions from importing Dynamo in the body; a program that uses it gets it."""
    if _DYNAMO in sys.modules:
        yield
        return
    absent = sys.modules[_DYNAMO] = _DynamoPlaceholder(_DYNAMO)
    try:
        yield
    finally:
        absent.leave()


def keep_out_of_optimizers() -> None:
    """Keep PyTorch's optimizers from importing Dynamo; once a program has, they let it skip their methods."""
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        function = getattr(vars(torch.optim.Optimizer)[name], "__wrapped__", None)
        if function is not None and not hasattr(function, _SKIPPED):
            setattr(function, _SKIPPED, _skip_late(function))


def _skip_late(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of a function that asks Dynamo to skip the function once Dynamo is loaded."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        loaded = sys.modules.get(_DYNAMO)
        if loaded is None or isinstance(loaded, _DynamoPlaceholder):
            return function(*arguments, **keywords)
        skipped = loaded.disable(function, wrapping=False)
        setattr(function, _SKIPPED, skipped)
        return skipped(*arguments, **keywords)

    return call


@contextmanager
def appearing_compiled() -> Iterator[None]:
    """Report in the body that a compiler traces it, and compile nothing there.

    Functions that `torch.compile` has compiled before run as they were written.
    """
    # torch.compiler.is_exporting() stays False: libraries respond to it with slower code for runtimes that
    # lack operations, such as loops instead of solve_triangular. So does torch.jit.is_tracing(), which would
    # make sizes tensors.
    replaced = {"_is_compiling_flag": True, "is_dynamo_compiling": lambda: True}
    originals = {name: getattr(torch.compiler, name) for name in replaced}, torch.compile
    with ExitStack() as entered:
        if _DYNAMO in sys.modules:  # without it nothing was compiled
            entered.enter_context(torch.compiler.set_stance("force_eager"))
        entered.enter_context(without_dynamo())
        try:
            vars(torch.compiler).update(replaced)
            vars(torch)["compile"] = _as_written
            yield
        finally:
            kept, vars(torch)["compile"] = originals
            vars(torch.compiler).update(kept)


def _as_written(model: Any = None, **_: object) -> Any:
    """Return the model: `torch.compile` in a step."""
    # The whole step is compiled anyway.
    return _as_written if model is None else model


def keep_dtensor_out() -> None:
    """Make PyTorch keep a placeholder for DTensor, which asks DTensor once a program has imported it."""
    if _DTENSOR in sys.modules:
        return
    module: Any = ModuleType(_DTENSOR)
    module.DTensor = _DTensorPlaceholder
    sys.modules[_DTENSOR] = module
    try:
        torch.Tensor._make_wrapper_subclass(_Probe, ()).detach()
    finally:
        del sys.modules[_DTENSOR]


class _PlaceholderType(type):
    """The class of DTensor's placeholder: all attributes are those of DTensor."""

    def __instancecheck__(cls, tensor: object) -> bool:
        real = getattr(sys.modules.get(_DTENSOR), "DTensor", cls)  # missing while the module is being loaded
        return real is not cls and isinstance(tensor, real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(sys.modules[_DTENSOR].DTensor, name)


class _DTensorPlaceholder(metaclass=_PlaceholderType):
    pass


class _Probe(torch.Tensor):
    """A tensor subclass whose operation, the first in the process, makes PyTorch look for DTensor."""

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0]
