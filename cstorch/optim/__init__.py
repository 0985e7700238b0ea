"""Optimizers whose steps run on the CS system."""

from cstorch.optim.adam import Adam, Adamax, AdamW, Lamb, NAdam, RAdam
from cstorch.optim.configure import configure_optimizer, configure_param_groups, replacement
from cstorch.optim.optimizer import Optimizer
from cstorch.optim.squares import Adadelta, Adafactor, Adagrad, RMSprop
from cstorch.optim.steps import ASGD, SGD, Lion, Rprop

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lion",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "configure_optimizer",
    "configure_param_groups",
    "replacement",
]
