"""A pipeline read from a torch DataLoader, and the rules that say what such a loader could do better."""
