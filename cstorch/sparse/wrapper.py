"""Sparsity as programs of release 2.0 use it: an optimizer of masks next to that of weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cstorch.sparse.algorithm import named_weights
from cstorch.sparse.configure import map_sparsity_algorithm
from cstorch.sparse.filters import default_sparse_param_filter


class SparsityOptimizer:
    """Masks of weights that are chosen by name.

    Args:
        sparsity_type: name of an algorithm, such as "static" or "rigl".
        names: weights that may be sparse.
        config: arguments of the algorithm; also `schedule` for `update`, and `param_name_patterns`, regular
            expressions of which one matches the name of a weight, in place of the default filter.

    Raises:
        ValueError: an argument is unknown.
    """

    def __init__(self, sparsity_type: str, names: Iterable[str], **config: Any) -> None:
        self._names = set(names)
        self._patterns = _patterns(config.pop("param_name_patterns", None))
        if "schedule" in config:
            config["update"] = config.pop("schedule")
        kind = map_sparsity_algorithm(sparsity_type)
        self.algorithm = kind(**config)
        self._init_method = self.algorithm.init_method
        self._loaded: Mapping[str, Any] | None = None

    def hook_module(self, module: nn.Module) -> None:
        """Make the chosen weights of a model sparse, with the masks that were loaded, else with full ones."""
        self.algorithm.init_method = lambda weight, _: torch.ones_like(weight, dtype=torch.bool)
        for owner, name, parameter in named_weights(module):
            if name in self._names and self._chooses(name, parameter):
                self.algorithm.sparsify_parameter(owner, name, parameter)
        self.algorithm.init_method = self._init_method
        if self._loaded is not None:
            self.load_state_dict(self._loaded)

    def initialize_sparsity(self) -> None:
        """Make the first masks, unless a checkpoint has brought some."""
        if all(bool(sparse.mask.all()) for sparse in self.algorithm.sparse_params.values()):
            self.algorithm.initialize()

    def step(self) -> None:
        """Do nothing: masks are updated in the step of the optimizer that is wrapped."""

    def state_dict(self) -> dict[str, Any]:
        """Return the masks by the names of their weights, and the count of steps."""
        masks = {name: {"mask": sparse.mask} for name, sparse in self.algorithm.sparse_params.items()}
        return {"state": masks, **self.algorithm.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from saved masks, also from ones that are loaded before `hook_module`."""
        self._loaded = state_dict
        for name, sparse in self.algorithm.sparse_params.items():
            saved = state_dict.get("state", {}).get(name)
            if saved is not None:
                with torch.no_grad():
                    sparse.mask.copy_(torch.as_tensor(saved["mask"]))
                sparse.prune()
        if "step" in state_dict:
            self.algorithm.load_state_dict(dict(state_dict))

    def _chooses(self, name: str, parameter: Tensor) -> bool:
        if self._patterns is None:
            return default_sparse_param_filter(name, parameter)
        return any(pattern.match(name) for pattern in self._patterns)


class SparsityWrapperOptimizer:
    """An optimizer whose steps keep weights sparse, and whose state has their masks.

    Everything else is the wrapped optimizer's.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, sparsity_optimizer: SparsityOptimizer) -> None:
        self._optimizer, self._sparsity = optimizer, sparsity_optimizer
        sparsity_optimizer.algorithm.apply(optimizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_optimizer"], name)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and under `sparsity` that of the masks."""
        return {**self._optimizer.state_dict(), "sparsity": self._sparsity.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state; one without masks leaves them as they are."""
        rest = dict(state_dict)
        sparsity = rest.pop("sparsity", None)
        self._optimizer.load_state_dict(rest)
        if sparsity is not None:
            self._sparsity.load_state_dict(sparsity)


def configure_sparsity_optimizer(
    sparsity_type: str, named_parameters: Iterable[tuple[str, nn.Parameter]], **kwargs: Any
) -> SparsityOptimizer:
    """Return the optimizer of masks that a configuration describes; see `SparsityOptimizer`."""
    return SparsityOptimizer(sparsity_type, [name for name, _ in named_parameters], **kwargs)


def configure_sparsity_wrapper(
    model: nn.Module, optimizer: torch.optim.Optimizer, sparsity_type: str, **kwargs: Any
) -> SparsityWrapperOptimizer:
    """Make weights of a model sparse, and return an optimizer that keeps them so."""
    masks = configure_sparsity_optimizer(sparsity_type, model.named_parameters(), **kwargs)
    masks.hook_module(model)
    masks.initialize_sparsity()
    return SparsityWrapperOptimizer(optimizer, masks)


def _patterns(given: str | Sequence[str] | Mapping[str, Any] | None) -> list[re.Pattern[str]] | None:
    if given is None:
        return None
    return [re.compile(pattern) for pattern in ([given] if isinstance(given, str) else given)]
