"""The input of a step."""

from cstorch.data import DataLoader

__all__ = ["DataLoader"]
