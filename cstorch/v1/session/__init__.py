"""The session API of the first releases: `cerebras_torch`, and `cerebras.framework.torch` in the launchers.

A program chooses the system (`initialize`), wraps its model, optimizer and loader, and runs its loop within
`with Session(...)`. The modules have the paths from which programs import them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from cstorch import load, save, saver
from cstorch.core.annotation import add_debug_name, get_debug_name, name_scope, set_debug_scope
from cstorch.model import prepare
from cstorch.v1.session import amp, core, data, nn, optim, utils
from cstorch.v1.session.environment import env, initialize, state, use_cs
from cstorch.v1.session.optimizers import optimizer
from cstorch.v1.session.session import (
    DataLoader,
    Session,
    compile,  # noqa: A004 - the name of the original
    dataloader,
)

__all__ = [
    "DataLoader",
    "Session",
    "add_debug_name",
    "amp",
    "compile",
    "core",
    "data",
    "dataloader",
    "enable_debug_name_scope",
    "env",
    "get_debug_name",
    "initialize",
    "load",
    "module",
    "name_scope",
    "nn",
    "optim",
    "optimizer",
    "save",
    "saver",
    "set_debug_scope",
    "state",
    "use_cs",
    "utils",
]

Model = TypeVar("Model", bound=torch.nn.Module)


def module(model: Model, device: Any = None) -> Model:
    """Move a model to the device of the CS system, and return it.

    Args:
        model: The model; create its optimizer after this call.
        device: Device without a CS system; None leaves the model where it is.
    """
    if use_cs():
        prepare(model)
    elif device is not None:
        model.to(device)
    state().modules.append(model)
    return model


def enable_debug_name_scope() -> None:
    """Do nothing: reports and errors always have the names of modules."""
