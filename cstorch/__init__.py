"""The PyTorch front end: a program's own loop, whose steps run on the CS system."""

from cstorch import amp, metrics, optim, utils
from cstorch.checkpoints import load, save
from cstorch.config import configure
from cstorch.model import prepare as compile  # noqa: A004 - as torch.compile is called
from cstorch.steps import compile_step, step_closure, trace

__all__ = [
    "amp",
    "compile",
    "compile_step",
    "configure",
    "load",
    "metrics",
    "optim",
    "save",
    "step_closure",
    "trace",
    "utils",
]
