"""Sparsity with masks that stay."""

from typing import Any

import torch

from cstorch.sparse.algorithm import SparsityAlgorithm


class Static(SparsityAlgorithm):
    """Masks that stay as they were made.

    Args:
        sparsity: share of the elements that are 0, from 0 to below 1; None with the init method "from_zeros".
        kwargs: see `SparsityAlgorithm`.
    """

    def __init__(self, sparsity: Any = None, **kwargs: Any) -> None:
        if sparsity is None and kwargs.get("init_method") != "from_zeros":
            raise ValueError("got no sparsity, expected a share of zeros from 0 to below 1")
        super().__init__(sparsity, **kwargs)

    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Prune the weights after a step of an optimizer, and its state."""
        self._prune(optimizer)
        self._report(self._first_sparsity())
