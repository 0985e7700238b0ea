"""How a run is done."""

from estimator import CSRunConfig

__all__ = ["CSRunConfig"]
