"""The graph compiler: CIRH, passes, kernels, placement, performance model, artifacts."""
