"""The runner of releases 1.x, at its public path: `from cstorch.runner import run`."""

from cstorch.v1.runner import LossValueError, Model, RunConfig, Runner, run

__all__ = ["LossValueError", "Model", "RunConfig", "Runner", "run"]
