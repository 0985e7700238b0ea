"""Analysis of torch DataLoaders; the only part of the analyzer that imports torch."""
