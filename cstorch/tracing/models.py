"""The tensors of a model: by the names of a step's state, and on the device."""

from __future__ import annotations

import torch
from torch import nn

from cs_toolkit.step import MODEL_STATE
from cstorch.tracing.device import to_device
from cstorch.tracing.names import names_of


def model_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a model by resource name; those of a metric in it have the metric's."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    others = names_of(tensor for _, tensor in tensors)
    return {others.get(id(tensor), MODEL_STATE + name): tensor for name, tensor in tensors}


def move_to_device(model: nn.Module) -> None:
    """Replaces the parameters and buffers of a model by tensors of the device; tied ones stay tied."""
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None:
                    store[name] = moved.setdefault(id(tensor), to_device(tensor))
