"""The loop of a program over batches, on the CS system and on this CPU."""
