"""Reads the pipeline of a torch DataLoader, and the rules about loaders."""
