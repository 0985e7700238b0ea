"""`cbtorch.utils.data`."""

from cstorch.session.utils.data import dataloader

__all__ = ["dataloader"]
