"""SwarmX: several CS systems share a batch: weights go to all, gradients are summed on their way back."""
