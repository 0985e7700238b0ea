"""Schedules of any entry of parameter groups: a subclass says which in `param_group_key`.

`cstorch.optim.lr_scheduler` and `cstorch.optim.weight_decay_scheduler` are made of them. Programs find
helpers for backends and classes here too.
"""

from cs_toolkit.subclasses import retrieve_all_subclasses
from cstorch.backends import current_backend as current_backend_impl
from cstorch.compiled import use_cs
from cstorch.optim.base_scheduler import Scheduler
from cstorch.optim.composed_schedules import (
    ChainedScheduler,
    PiecewiseConstantScheduler,
    ScalePerParamScheduler,
    SequentialScheduler,
)
from cstorch.optim.schedules import (
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    CosineDecayScheduler,
    CyclicScheduler,
    ExponentialScheduler,
    InverseExponentialTimeDecayScheduler,
    InverseSquareRootDecayScheduler,
    LambdaScheduler,
    LinearScheduler,
    MultiplicativeScheduler,
    MultiStepScheduler,
    OneCycleScheduler,
    PolynomialScheduler,
    StepScheduler,
)

__all__ = [
    "ChainedScheduler",
    "ConstantScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "CosineDecayScheduler",
    "CyclicScheduler",
    "ExponentialScheduler",
    "InverseExponentialTimeDecayScheduler",
    "InverseSquareRootDecayScheduler",
    "LambdaScheduler",
    "LinearScheduler",
    "MultiStepScheduler",
    "MultiplicativeScheduler",
    "OneCycleScheduler",
    "PiecewiseConstantScheduler",
    "PolynomialScheduler",
    "ScalePerParamScheduler",
    "Scheduler",
    "SequentialScheduler",
    "StepScheduler",
    "current_backend_impl",
    "retrieve_all_subclasses",
    "use_cs",
]
