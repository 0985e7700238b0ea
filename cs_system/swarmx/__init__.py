"""SwarmX: CS systems share a batch: weights are broadcast to all, gradients are reduced on their way back."""
