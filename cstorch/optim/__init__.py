"""Optimizers whose steps run on the CS system, and schedules of learning rates and weight decays."""

from cstorch.optim import lr_scheduler, scheduler, weight_decay_scheduler
from cstorch.optim.adam import Adam, Adamax, AdamW, Lamb, NAdam, RAdam
from cstorch.optim.adaptive import Adadelta, Adafactor, Adagrad, RMSprop
from cstorch.optim.configure import (
    configure_lr_scheduler,
    configure_optimizer,
    configure_optimizer_params,
    configure_param_groups,
    configure_scheduler_params,
)
from cstorch.optim.optimizer import Optimizer
from cstorch.optim.registry import check_optimizer, replacement
from cstorch.optim.sgd import ASGD, SGD, Lion, Muon, Rprop

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
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "check_optimizer",
    "configure_lr_scheduler",
    "configure_optimizer",
    "configure_optimizer_params",
    "configure_param_groups",
    "configure_scheduler_params",
    "lr_scheduler",
    "replacement",
    "scheduler",
    "weight_decay_scheduler",
]
