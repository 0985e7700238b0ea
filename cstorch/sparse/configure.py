"""Groups of sparsity algorithms, algorithms by configuration, and the sparsity optimizer of release 2.0."""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cs_toolkit.subclasses import find_program_class
from cstorch.sparse.algorithm import (
    ParamFilter,
    SparsityAlgorithm,
    SparsityHook,
    Static,
    default_sparse_param_filter,
    filter_of,
    named_weights,
)
from cstorch.sparse.dynamic import GMP, SET, RigL

__all__ = [
    "Group",
    "SparsityOptimizer",
    "SparsityWrapperOptimizer",
    "configure",
    "configure_sparsity_optimizer",
    "configure_sparsity_wrapper",
    "default_sparse_param_filter",
    "map_sparsity_algorithm",
]


class _Handles:
    """Removes a hook from every algorithm of a group."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Remove the hook."""
        for handle in self._handles:
            handle.remove()


class Group(SparsityAlgorithm):
    """Sparsity algorithms with filters; a weight belongs to the first one whose filter chooses it.

    Args:
        groups: algorithms by filter, as for `add`.
    """

    def __init__(self, groups: Any = None) -> None:
        super().__init__(None)
        self._groups: list[tuple[Callable[[str, Tensor], bool], SparsityAlgorithm]] = []
        for param_filter, algorithm in groups.items() if isinstance(groups, Mapping) else groups or ():
            self.add(param_filter, algorithm)

    @property
    def algorithms(self) -> list[SparsityAlgorithm]:
        """The algorithms in the order of their addition."""
        return [algorithm for _, algorithm in self._groups]

    @property
    def num_sparse_params(self) -> int:
        """Number of sparse weights."""
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
            filter: a glob pattern of paths such as `*dense_layer.weight`, several, or a function of path
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
        """Yield the sparse weights of a module or an optimizer, or the one that is a tensor."""
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
        """Prune weights and state after a step of an optimizer, and update masks."""
        for algorithm in self.algorithms:
            algorithm.update(optimizer)

    def register_target_sparsity_hook(self, hook: SparsityHook) -> Any:
        """Register a hook that is called with each weight's name and target sparsity after each step."""
        return _Handles([algorithm.register_target_sparsity_hook(hook) for algorithm in self.algorithms])

    def register_computed_sparsity_hook(self, hook: SparsityHook) -> Any:
        """Register a hook that is called with each weight's name and its mask's sparsity after each step."""
        return _Handles([algorithm.register_computed_sparsity_hook(hook) for algorithm in self.algorithms])

    def visit_state(self, f: Callable[[Tensor], Tensor | None]) -> None:
        """Call a function on each tensor of the state; a tensor that it returns replaces it."""
        for algorithm in self.algorithms:
            algorithm.visit_state(f)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the algorithms by number; if there is one, its state."""
        if len(self) == 1:
            return self.algorithms[0].state_dict()
        return {str(number): algorithm.state_dict() for number, algorithm in enumerate(self.algorithms)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state: by number, or one for all algorithms."""
        for number, algorithm in enumerate(self.algorithms):
            algorithm.load_state_dict(state_dict.get(str(number), state_dict))


_ALGORITHMS: dict[str, type[SparsityAlgorithm]] = {
    kind.__name__.lower(): kind for kind in (Static, GMP, SET, RigL)
}


def map_sparsity_algorithm(algorithm: str) -> type[SparsityAlgorithm]:
    """Return the class of an algorithm, one of ours or of the program, by its name in any case.

    Raises:
        ValueError: there is none of that name.
    """
    found = _ALGORITHMS.get(algorithm.lower()) or find_program_class(SparsityAlgorithm, algorithm)
    if found is None:
        raise ValueError(f"got the sparsity algorithm {algorithm!r}, expected {', '.join(_ALGORITHMS)}")
    return found


def configure(config: float | Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> Group:
    """Make the sparsity algorithms that a configuration describes.

    Args:
        config: a sparsity for constant masks; a dictionary with `algorithm` ("static" by default),
            `param_filter` and arguments of the algorithm; or a list of such dictionaries.

    Raises:
        ValueError: an algorithm or a filter is unknown.
        TypeError: it is none of these, or the algorithm does not accept an argument.
    """
    if isinstance(config, int | float):
        return _group([{"sparsity": config}])
    if isinstance(config, Mapping):
        return _group([config])
    if isinstance(config, list | tuple):
        return _group(config)
    raise TypeError(f"got the sparsity {config!r}, expected a number, a dictionary, or a list of them")


def _group(configs: Any) -> Group:
    group = Group()
    for config in configs:
        if not isinstance(config, Mapping):
            raise TypeError(f"got {config!r} in a list of sparsities, expected a dictionary")
        arguments = dict(config)
        kind = map_sparsity_algorithm(arguments.pop("algorithm", "static"))
        param_filter = arguments.pop("param_filter", None)
        group.add(param_filter, kind(**arguments))
    return group


class SparsityOptimizer:
    """Keeps the masks of weights that are chosen by name.

    Args:
        sparsity_type: name of an algorithm, such as "static" or "rigl".
        names: weights that may be sparse.
        config: arguments of the algorithm; also `schedule` for `update`, and `param_name_patterns`, regular
            expressions of which one matches the name of a weight, instead of the default filter.

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
        """Make the chosen weights of a model sparse, with loaded masks if any, else with full ones."""
        self.algorithm.init_method = lambda weight, _: torch.ones_like(weight, dtype=torch.bool)
        for owner, name, parameter in named_weights(module):
            if name in self._names and self._chooses(name, parameter):
                self.algorithm.sparsify_parameter(owner, name, parameter)
        self.algorithm.init_method = self._init_method
        if self._loaded is not None:
            self.load_state_dict(self._loaded)

    def initialize_sparsity(self) -> None:
        """Make the first masks, unless a checkpoint has provided them."""
        if all(bool(sparse.mask.all()) for sparse in self.algorithm.sparse_params.values()):
            self.algorithm.initialize()

    def step(self) -> None:
        """Do nothing: the step of the wrapped optimizer updates the masks."""

    def state_dict(self) -> dict[str, Any]:
        """Return the masks by the names of their weights, and the count of steps."""
        masks = {name: {"mask": sparse.mask} for name, sparse in self.algorithm.sparse_params.items()}
        return {"state": masks, **self.algorithm.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from saved masks; they may be loaded before `hook_module`."""
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
    """An optimizer whose steps keep weights sparse, and whose state contains their masks.

    All other attributes are those of the wrapped optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, sparsity_optimizer: SparsityOptimizer) -> None:
        self._optimizer, self._sparsity = optimizer, sparsity_optimizer
        sparsity_optimizer.algorithm.apply(optimizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_optimizer"], name)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, with that of the masks under `sparsity`."""
        return {**self._optimizer.state_dict(), "sparsity": self._sparsity.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state; without masks in it, these do not change."""
        rest = dict(state_dict)
        sparsity = rest.pop("sparsity", None)
        self._optimizer.load_state_dict(rest)
        if sparsity is not None:
            self._sparsity.load_state_dict(sparsity)


def configure_sparsity_optimizer(
    sparsity_type: str, named_parameters: Iterable[tuple[str, nn.Parameter]], **kwargs: Any
) -> SparsityOptimizer:
    """Make the `SparsityOptimizer` that a configuration describes."""
    return SparsityOptimizer(sparsity_type, [name for name, _ in named_parameters], **kwargs)


def configure_sparsity_wrapper(
    model: nn.Module, optimizer: torch.optim.Optimizer, sparsity_type: str, **kwargs: Any
) -> SparsityWrapperOptimizer:
    """Make weights of a model sparse, and return an optimizer that keeps them sparse."""
    masks = configure_sparsity_optimizer(sparsity_type, model.named_parameters(), **kwargs)
    masks.hook_module(model)
    masks.initialize_sparsity()
    return SparsityWrapperOptimizer(optimizer, masks)


def _patterns(given: str | Sequence[str] | Mapping[str, Any] | None) -> list[re.Pattern[str]] | None:
    if given is None:
        return None
    return [re.compile(pattern) for pattern in ([given] if isinstance(given, str) else given)]
