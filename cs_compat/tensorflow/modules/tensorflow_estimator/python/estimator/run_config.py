"""The class RunConfig."""

from estimator import RunConfig

__all__ = ["RunConfig"]
