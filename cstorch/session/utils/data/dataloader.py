"""`cbtorch.utils.data.dataloader`."""

from cstorch.session.data import DataLoader, dataloader

__all__ = ["DataLoader", "dataloader"]
