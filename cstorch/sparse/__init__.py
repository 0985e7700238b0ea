"""Sparse weights: masks that are constant (`Static`) or change during training (`GMP`, `SET`, `RigL`)."""

from cstorch.sparse import utils
from cstorch.sparse.algorithm import SparseParameter, SparsityAlgorithm, Static
from cstorch.sparse.configure import (
    Group,
    SparsityWrapperOptimizer,
    configure,
    configure_sparsity_optimizer,
    configure_sparsity_wrapper,
    default_sparse_param_filter,
    map_sparsity_algorithm,
)
from cstorch.sparse.dynamic import GMP, SET, DynamicSparsityAlgorithm, RigL

__all__ = [
    "GMP",
    "SET",
    "DynamicSparsityAlgorithm",
    "Group",
    "RigL",
    "SparseParameter",
    "SparsityAlgorithm",
    "SparsityWrapperOptimizer",
    "Static",
    "configure",
    "configure_sparsity_optimizer",
    "configure_sparsity_wrapper",
    "default_sparse_param_filter",
    "map_sparsity_algorithm",
    "utils",
]
