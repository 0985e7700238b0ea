"""Layers that the original adds to those of `torch.nn`."""

from torch.nn import Buffer, Parameter, SmoothL1Loss, modules

from cstorch.nn import functional
from cstorch.nn.dice import DiceCELoss
from cstorch.nn.markers import Scope, StripPadding
from cstorch.nn.selective_grad import SelectiveGrad

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
