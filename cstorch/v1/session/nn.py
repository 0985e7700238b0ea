"""`cbtorch.nn`."""

from cstorch.nn import Scope, StripPadding

__all__ = ["Scope", "StripPadding"]
