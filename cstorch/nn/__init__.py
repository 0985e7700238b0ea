"""Layers that the original adds to those of `torch.nn`."""

from torch.nn import Buffer, Parameter, SmoothL1Loss, modules

from cstorch.nn import functional
from cstorch.nn.layers import DiceCELoss, Scope, SelectiveGrad, StripPadding

__all__ = [
    "Buffer",
    "DiceCELoss",
    "Parameter",
    "Scope",
    "SelectiveGrad",
    "SmoothL1Loss",
    "StripPadding",
    "functional",
    "modules",
]
