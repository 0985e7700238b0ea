"""A model that is prepared for the backend that it runs on."""

from __future__ import annotations

import logging
from typing import TypeVar

from torch import nn

from cs_toolkit.garbage import seldom_searched
from cstorch import compiled
from cstorch.amp.half import autocast
from cstorch.backends import Backend, BackendType, current_backend
from cstorch.backends.chosen import choose, execution_of, type_of
from cstorch.config import change_configuration, configuration, is_configured
from cstorch.errors import CompileCallError, ConfigureError, ModelMovedError
from cstorch.tracing.models import move_to_device
from cstorch.tracing.places import user_line

log = logging.getLogger("cstorch")

Model = TypeVar("Model", bound=nn.Module)


def prepare(model: Model, backend: str | BackendType | Backend | None = None) -> Model:
    """Moves a model's parameters and buffers to the device of its backend, and returns the model.

    Nothing is compiled yet: that happens in the first step, when the shapes of a batch are known. On the CPU
    nothing moves and nothing is compiled.

    The model gets the attributes `backend` and, where its class has none, `device`.

    Args:
        model: the model.
        backend: what `cstorch.backend` has returned, or its name. None means the backend of this process; the
            CS system where there is none and `cstorch.configure` was called, else this CPU. The name "WSE_WS"
            streams weights, unless `configure` has chosen an execution.

    Raises:
        CompileCallError: no module, or a backend that is not there.
        ConfigureError: a backend that is not that of this process.
        ModelMovedError: the model is not on this CPU.
    """
    if not isinstance(model, nn.Module):
        raise CompileCallError(f"compile() got a {type(model).__name__}, expected a torch.nn.Module")
    chosen = _backend_of(backend)
    kept = compiled.cpu_models if chosen.is_cpu else compiled.models
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type not in ("cpu", chosen.torch_device.type):
            raise ModelMovedError(str(tensor.device), user_line())
    if not chosen.is_cpu:
        with seldom_searched():
            move_to_device(model)
    object.__setattr__(model, "backend", chosen)
    if not hasattr(model, "device"):
        object.__setattr__(model, "device", chosen.torch_device)
    if model not in kept:
        kept.append(model)
        if chosen.is_cpu and chosen.mixed_precision:
            _autocast_forward(model)
    return model


def _autocast_forward(model: nn.Module) -> None:
    """Compute the model, with a loss that it returns, within `amp.autocast`; gradients follow it."""
    entered: list[autocast] = []

    def enter(*_: object) -> None:
        entered.append(autocast())
        entered[-1].__enter__()

    def leave(*_: object) -> None:
        entered.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(enter, prepend=True)
    model.register_forward_hook(leave, always_call=True)


def _backend_of(wanted: str | BackendType | Backend | None) -> Backend:
    """The backend that a program gives or has chosen, else what `configure` means."""
    current = current_backend(raise_exception=False)
    if isinstance(wanted, Backend):
        return wanted
    if wanted is None and current is not None:
        return current
    default = BackendType.CSX if compiled.models or is_configured() else BackendType.CPU
    kind = default if wanted is None else type_of(wanted)
    present = current.backend_type if current else BackendType.CSX if compiled.models else kind
    if kind is not present:
        raise ConfigureError(
            f"compile() is for backend '{kind.value}', but this process computes on {present.value}; give "
            "compile the backend that cstorch.backend returned"
        )
    if current is not None:
        return current
    if kind is BackendType.CSX:  # of a program that calls `configure`, and not `backend`
        execution = None if wanted is None else execution_of(wanted)
        if execution is not None and configuration().execution == "auto":
            change_configuration(execution=execution)
        return Backend(kind)
    if wanted is None:
        log.info("the model runs on this CPU; for a CS system choose cstorch.backend('CSX')")
    return choose(kind)
