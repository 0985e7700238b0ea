"""The phases of a run."""

from cstorch.utils.run_phases import AssessBottlenecks, locate_csperf_log

__all__ = ["AssessBottlenecks", "locate_csperf_log"]
