"""The configuration of a run."""

from estimator import CSRunConfig

__all__ = ["CSRunConfig"]
