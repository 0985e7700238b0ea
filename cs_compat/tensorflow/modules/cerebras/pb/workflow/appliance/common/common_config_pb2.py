"""How the appliance runs a program."""

from cs_compat.appliance.utils.debug_args import DebugArgs, ExecutionStrategy

__all__ = ["DebugArgs", "ExecutionStrategy"]
