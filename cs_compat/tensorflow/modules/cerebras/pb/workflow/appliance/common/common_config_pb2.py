"""How the appliance runs a program."""

from cs_compat.appliance.utils.debug_args import DebugArgs


class ExecutionStrategy:
    """How a step is executed."""

    ES_PIPELINE = 1
    ES_WEIGHT_STREAMING = 2


__all__ = ["DebugArgs", "ExecutionStrategy"]
