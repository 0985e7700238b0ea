"""MemoryX: stores the weights and optimizer state of a model that the wafer holds a layer at a time."""
