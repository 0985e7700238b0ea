"""A model that is prepared for the CS system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from cstorch.compiled import models
from cstorch.errors import CompileCallError
from cstorch.tracing.step import move_to_device

Model = TypeVar("Model", bound=nn.Module)
_BACKENDS = ("WSE_WS", "CSX")


@dataclass(frozen=True)
class Backend:
    """What a compiled model runs on."""

    name: str = "CSX"

    def is_wse(self) -> bool:
        """Whether it is a CS system."""
        return True

    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return False

    def is_cpu(self) -> bool:
        """Whether it is this CPU."""
        return False


def prepare(model: Model, backend: str | None = None) -> Model:
    """Moves a model's parameters and buffers to the CS system's device, and returns the model.

    Nothing is compiled yet: that happens in the first step, when the shapes of a batch are known.

    Raises:
        CompileCallError: no module, or a backend that is not there.
    """
    if not isinstance(model, nn.Module):
        raise CompileCallError(f"compile() got a {type(model).__name__}, expected a torch.nn.Module")
    if backend is not None and backend.upper() not in _BACKENDS:
        raise CompileCallError(f"backend is '{backend}', expected one of {', '.join(_BACKENDS)}")
    move_to_device(model)
    object.__setattr__(model, "backend", Backend())
    if model not in models:
        models.append(model)
    return model
