"""Layers that the original adds to those of `torch.nn`."""

from cstorch.nn.dice import DiceCELoss
from cstorch.nn.markers import Scope, StripPadding

__all__ = ["DiceCELoss", "Scope", "StripPadding"]
