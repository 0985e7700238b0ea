"""`cbtorch.data`: the loader of a session."""

from cstorch.v1.session.session import DataLoader, dataloader

__all__ = ["DataLoader", "dataloader"]
