"""`cbtorch.utils.data.dataloader`."""

from cstorch.v1.session.session import DataLoader, dataloader

__all__ = ["DataLoader", "dataloader"]
