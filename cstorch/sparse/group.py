"""Several sparsity algorithms, each for the weights that its filter chooses."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cstorch.sparse.algorithm import SparsityAlgorithm, SparsityHook, named_weights
from cstorch.sparse.filters import ParamFilter, filter_of


class _Handles:
    """Removes a hook from every algorithm of a group."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Remove the hook."""
        for handle in self._handles:
            handle.remove()


class Group(SparsityAlgorithm):
    """Sparsity algorithms with their filters; a weight belongs to the first whose filter chooses it.

    Args:
        groups: algorithms by filter; see `add`.
    """

    def __init__(self, groups: Any = None) -> None:
        super().__init__(None)
        self._groups: list[tuple[Callable[[str, Tensor], bool], SparsityAlgorithm]] = []
        for param_filter, algorithm in groups.items() if isinstance(groups, Mapping) else groups or ():
            self.add(param_filter, algorithm)

    @property
    def algorithms(self) -> list[SparsityAlgorithm]:
        """The algorithms, in the order in which they were added."""
        return [algorithm for _, algorithm in self._groups]

    @property
    def num_sparse_params(self) -> int:
        """Number of weights that are sparse."""
        return sum(algorithm.num_sparse_params for algorithm in self.algorithms)

    @property
    def sparsity(self) -> Any:
        """The schedules of the algorithms."""
        return [algorithm.sparsity for algorithm in self.algorithms]

    def __getitem__(self, index: int) -> SparsityAlgorithm:
        return self.algorithms[index]

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, filter: ParamFilter, algorithm: SparsityAlgorithm) -> None:  # noqa: A002
        """Add an algorithm.

        Args:
            filter: a pattern of weights' paths such as "*dense_layer.weight", several, or a function of path
                and weight.
            algorithm: sparsifies the weights that the filter chooses.

        Raises:
            TypeError: it is no algorithm, or a group.
        """
        if not isinstance(algorithm, SparsityAlgorithm) or isinstance(algorithm, Group):
            raise TypeError(f"got a {type(algorithm).__name__}, expected a sparsity algorithm; see extend")
        self._groups.append((filter_of(filter), algorithm))

    def extend(self, group: "Group") -> None:
        """Add the algorithms of another group."""
        self._groups += group._groups

    def get_sparse_params(self, obj: nn.Module | torch.optim.Optimizer | Tensor) -> Any:
        """Yield the sparse weights that are part of a module, an optimizer, or a tensor."""
        for algorithm in self.algorithms:
            yield from algorithm.get_sparse_params(obj)

    def initialize(self) -> None:
        """Make the first masks, and prune the weights."""
        for algorithm in self.algorithms:
            algorithm.initialize()

    def sparsify_module(self, module: nn.Module) -> None:
        """Sparsify the weights of a model that a filter chooses."""
        for owner, name, parameter in named_weights(module):
            self.sparsify_parameter(owner, name, parameter)

    def sparsify_parameter(self, module: nn.Module, name: str, param: Tensor) -> None:
        """Sparsify one weight if a filter chooses it."""
        for chooses, algorithm in self._groups:
            if chooses(name, param):
                algorithm.sparsify_parameter(module, name, param)
                return

    def sparsify_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Make each step of an optimizer prune the weights and update masks."""
        for algorithm in self.algorithms:
            algorithm.sparsify_optimizer(optimizer)

    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Follow a step of an optimizer."""
        for algorithm in self.algorithms:
            algorithm.update(optimizer)

    def register_target_sparsity_hook(self, hook: SparsityHook) -> Any:
        """Call a hook with each weight's name and intended sparsity after each step."""
        return _Handles([algorithm.register_target_sparsity_hook(hook) for algorithm in self.algorithms])

    def register_computed_sparsity_hook(self, hook: SparsityHook) -> Any:
        """Call a hook with each weight's name and the share of zeros in its mask after each step."""
        return _Handles([algorithm.register_computed_sparsity_hook(hook) for algorithm in self.algorithms])

    def visit_state(self, f: Callable[[Tensor], Tensor | None]) -> None:
        """Call a function on each tensor of the state; a tensor that it returns takes its place."""
        for algorithm in self.algorithms:
            algorithm.visit_state(f)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the algorithms by their number; of one, its own."""
        if len(self) == 1:
            return self.algorithms[0].state_dict()
        return {str(number): algorithm.state_dict() for number, algorithm in enumerate(self.algorithms)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state: by number, or one for all algorithms."""
        for number, algorithm in enumerate(self.algorithms):
            algorithm.load_state_dict(state_dict.get(str(number), state_dict))
