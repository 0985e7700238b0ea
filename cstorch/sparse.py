"""Sparse weights, which this toolkit has not: the names are there, so that programs can be imported."""

from __future__ import annotations

from typing import Any

from cstorch.errors import NotThereError


class NotThere:
    """A class of the original that cannot be made here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotThereError(
            f"cstorch.sparse.{type(self).__name__} is not there: weights are dense on this system; leave the "
            "sparsity out of the configuration, and train densely"
        )


def _named(name: str) -> type[NotThere]:
    return type(name, (NotThere,), {"__module__": __name__})


GMP = _named("GMP")
Group = _named("Group")
RigL = _named("RigL")
SET = _named("SET")
SparsityAlgorithm = _named("SparsityAlgorithm")
SparsityWrapperOptimizer = _named("SparsityWrapperOptimizer")
Static = _named("Static")
configure = _named("configure")
configure_sparsity_optimizer = _named("configure_sparsity_optimizer")
