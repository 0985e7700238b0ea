"""`cbtorch.utils.data`."""

from cstorch.v1.session.utils.data import dataloader

__all__ = ["dataloader"]
