"""Sparsity with masks that change during training: GMP, SET and RigL.

The update is part of the recorded step: every step computes new masks, and only an update step uses them.
"""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from cs_toolkit.step import OPTIMIZER_STATE
from cstorch.amp.loss_scaling import update_if_finite
from cstorch.sparse.algorithm import SparseParameter, SparsityAlgorithm
from cstorch.sparse.utils import (
    Cycling,
    HyperParameterSchedule,
    Number,
    configure_hyperparameter,
    configure_update,
    kept_count,
    largest,
)
from cstorch.tracing.device import DeviceTensor, to_device
from cstorch.tracing.recorder import current_recording
from cstorch.tracing.state import place_with_models, register


class DynamicSparsityAlgorithm(SparsityAlgorithm):
    """Masks that are updated at some steps, as a subclass defines in `update_mask`.

    Args:
        sparsity: share of the elements that are 0, or a schedule of it: a list of numbers to cycle through, a
            function of the step, or a dictionary such as `{"type": "exp", "init": 0, "gamma": -0.01}`.
        update: steps at which masks are updated: a dictionary with `freq`, `start` and `stop`, a list, or a
            function of the step; None for all.
        kwargs: arguments of `SparsityAlgorithm`.

    Attributes:
        step: steps of the optimizer so far, an int64 scalar; a step that a dynamic
            `GradScaler` undoes does not count.
        updates: the number of these that have updated masks.
    """

    def __init__(self, sparsity: Any = None, update: Any = None, **kwargs: Any) -> None:
        if sparsity is None:
            raise ValueError("got no sparsity, expected a share of zeros from 0 to below 1, or its schedule")
        super().__init__(sparsity, **kwargs)
        self.update_schedule = configure_update(update)
        self.step = place_with_models(torch.tensor(0))
        self.updates = place_with_models(torch.tensor(0))
        register(f"{OPTIMIZER_STATE}sparsity.", self)

    def named_state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the counts of steps; masks are state of the model."""
        yield "step", self.step
        yield "updates", self.updates

    @property
    def is_update_step(self) -> Tensor:
        """True if this step updates masks, a bool scalar."""
        return self.update_schedule.is_update_step(self.step)

    def sparsify_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Prune weights and the optimizer's state after each of its steps, and update masks."""
        super().sparsify_optimizer(optimizer)
        for sparse in self.get_sparse_params(optimizer):
            if isinstance(sparse.param, DeviceTensor) and not isinstance(self.step, DeviceTensor):
                # The algorithm was made before the model was compiled.
                self.step, self.updates = to_device(self.step), to_device(self.updates)
            update_if_finite(optimizer, sparse.mask)
        update_if_finite(optimizer, self.step)
        update_if_finite(optimizer, self.updates)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Update the masks if this step does, and prune the weights after a step of an optimizer."""
        assert self._sparsity is not None
        is_update_step, target = self.is_update_step, self._now(self._sparsity)
        # A recorded step cannot read values, so it always computes new masks.
        if current_recording() is not None or bool(is_update_step):
            for sparse in self.sparse_params.values():
                found = self.update_mask(sparse.param, sparse.mask, target)
                sparse.mask.copy_(torch.where(is_update_step, found, sparse.mask))
        for sparse in self.sparse_params.values():
            sparse.dense_grad = None
        self._prune(optimizer)
        self._report(target)
        self.step.add_(1)
        self.updates.add_(is_update_step)

    def _now(self, schedule: HyperParameterSchedule) -> Number:
        return schedule(self.updates if schedule.of_updates else self.step)

    @abstractmethod
    def update_mask(self, p: Tensor, mask: Tensor, sparsity: Number) -> Tensor:
        """Return the next mask of a weight.

        Args:
            p: the weight, which is 0 where its mask is.
            mask: bool tensor of its shape.
            sparsity: share of zeros of the next mask.
        """

    def visit_state(self, f: Callable[[Tensor], Tensor | None]) -> None:
        """Call a function on the counts of steps."""
        for name in ("step", "updates"):
            found = f(getattr(self, name))
            if found is not None:
                setattr(self, name, found)

    def state_dict(self) -> dict[str, Any]:
        """Return the count of steps, and for cycling sparsities the number of updates of each weight."""
        if not isinstance(self._sparsity, Cycling):
            return {"step": self.step}
        return {"step": self.step, "sparsity": {name: {"index": self.updates} for name in self.sparse_params}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from saved counts."""
        with torch.no_grad():
            self.step.copy_(torch.as_tensor(state_dict["step"]))
            for saved in state_dict.get("sparsity", {}).values():
                self.updates.copy_(torch.as_tensor(saved["index"]))


class GMP(DynamicSparsityAlgorithm):
    """Gradual magnitude pruning: keeps the largest elements (Zhu and Gupta, 2017, arXiv:1710.01878).

    The sparsity follows an increasing schedule, which begins with that of the first masks.

    Args:
        kwargs: arguments of `DynamicSparsityAlgorithm`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: Number) -> Tensor:
        """Return a mask of the largest elements."""
        return largest(p.abs() * mask.to(p.dtype), kept_count(p.numel(), sparsity))


class _DropAndGrow(DynamicSparsityAlgorithm):
    """Drops a fraction of the elements of a mask, the smallest, and lets others grow from 0."""

    def __init__(self, drop_fraction: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drop_fraction = configure_hyperparameter("drop_fraction", drop_fraction)

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: Number) -> Tensor:
        """Return a mask without the smallest elements and with new ones."""
        count = kept_count(p.numel(), sparsity)
        active = mask.sum()
        stays = (active * (1 - self._now(self.drop_fraction))).floor().to(torch.int64)
        magnitude = torch.where(mask, p.abs().float(), -1.0)  # elements outside of the mask rank last
        kept = self._largest(p, magnitude, torch.minimum(stays, count))
        growth = self._growth(p).float()
        return self._largest(p, torch.where(kept, torch.inf, growth), count)

    @abstractmethod
    def _growth(self, p: Tensor) -> Tensor:
        """Return a score of each element; those with the largest scores grow."""

    def _largest(self, p: Tensor, score: Tensor, count: Tensor) -> Tensor:
        return largest(score, count)


class SET(_DropAndGrow):
    """Sparse evolutionary training: random elements grow (Mocanu et al., 2018, arXiv:1707.04780).

    Args:
        drop_fraction: fraction of the kept elements to drop, or a schedule of it.
        kwargs: arguments of `DynamicSparsityAlgorithm`.
    """

    def __init__(self, drop_fraction: Any = 0.3, **kwargs: Any) -> None:
        super().__init__(drop_fraction, **kwargs)

    def _growth(self, p: Tensor) -> Tensor:
        return torch.rand_like(p)


class RigL(_DropAndGrow):
    """Rigged lottery: elements with the largest gradients grow (Evci et al., 2020, arXiv:1911.11134).

    Args:
        drop_fraction: fraction of the kept elements to drop, or a schedule of it.
        balance_in_groups: number of groups of inputs (dimension 1), which keep equal numbers of elements.
        balance_out_groups: number of groups of outputs (dimension 0); only one of the two can be given.
        kwargs: arguments of `DynamicSparsityAlgorithm`.

    Raises:
        ValueError: both numbers of groups are given.
    """

    def __init__(
        self,
        drop_fraction: Any = 0.3,
        balance_in_groups: int | None = None,
        balance_out_groups: int | None = None,
        **kwargs: Any,
    ) -> None:
        if balance_in_groups is not None and balance_out_groups is not None:
            raise ValueError(
                f"got balance_in_groups={balance_in_groups} and balance_out_groups={balance_out_groups}, "
                "expected one of the two"
            )
        super().__init__(drop_fraction, **kwargs)
        self.balance_in_groups, self.balance_out_groups = balance_in_groups, balance_out_groups

    def sparsify_parameter(self, module: torch.nn.Module, name: str, param: Tensor) -> None:
        """Make one weight sparse.

        Raises:
            ValueError: its inputs or outputs cannot be divided into groups of equal size.
        """
        for dimension, groups in ((1, self.balance_in_groups), (0, self.balance_out_groups)):
            if groups is not None and param.shape[dimension] % groups:
                raise ValueError(
                    f"{name} has {param.shape[dimension]} elements in dimension {dimension}, expected a "
                    f"multiple of the {groups} groups to balance"
                )
        super().sparsify_parameter(module, name, param)

    def _growth(self, p: Tensor) -> Tensor:
        sparse: SparseParameter = next(self.get_sparse_params(p))
        # Without a gradient all scores are equal, and the first elements grow.
        return torch.zeros_like(p) if sparse.dense_grad is None else sparse.dense_grad.abs()

    def _largest(self, p: Tensor, score: Tensor, count: Tensor) -> Tensor:
        if self.balance_in_groups is not None:
            return largest(score.transpose(0, 1), count, self.balance_in_groups).transpose(0, 1)
        return largest(score, count, self.balance_out_groups or 1)
