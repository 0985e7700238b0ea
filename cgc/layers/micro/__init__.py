"""A step in micro-batches: some samples at a time, whose gradients add up to those of the whole batch."""
