"""Debug arguments of the appliance of release 1.6."""

from cs_compat.appliance.utils.debug_args import DebugArgs

__all__ = ["DebugArgs"]
