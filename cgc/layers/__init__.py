"""Weight streaming: a step cut into layers. The wafer holds one layer at a time, MemoryX all weights."""
