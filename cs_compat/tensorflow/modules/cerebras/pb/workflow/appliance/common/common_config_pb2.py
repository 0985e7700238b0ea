"""Debug arguments and execution modes of the appliance."""

from cs_compat.appliance.utils.debug_args import DebugArgs, ExecutionStrategy

__all__ = ["DebugArgs", "ExecutionStrategy"]
