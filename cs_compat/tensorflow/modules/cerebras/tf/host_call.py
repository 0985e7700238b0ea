"""Metrics that are computed on the host."""

from estimator.spec import host_call_to_eval_metric_ops, validate_host_call

__all__ = ["host_call_to_eval_metric_ops", "validate_host_call"]
