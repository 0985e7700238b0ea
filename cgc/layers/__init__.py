"""A step cut into layers, for weight streaming: the wafer holds one layer at a time, MemoryX all weights."""
